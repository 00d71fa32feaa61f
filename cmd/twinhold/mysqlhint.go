package main

import "github.com/twinhold/twinhold/internal/mysqlerr"

// mysqlHint says what to do where a pod's MySQL did not do what a command asked. otherwise is for what is the command's own
// to explain: a right that is missing, and what nobody foresaw.
func mysqlHint(err error, otherwise string) string {
	switch mysqlerr.Of(err) {
	case mysqlerr.Unreachable:
		return "is the pod's MySQL running, and is its address right?"
	case mysqlerr.Login:
		return "are the pod's MySQL user and password right, and may it come from this machine?"
	case mysqlerr.ReadOnly:
		return "the pod's MySQL takes no writes: does the pod's mysql name a replica?"
	case mysqlerr.Full:
		return "the pod's MySQL has no disk space left: make room first"
	case mysqlerr.NoSchema:
		return "create the schema, as in CREATE DATABASE name; then run twinhold migrate"
	case mysqlerr.NoTable:
		return "the tables are not there: run twinhold migrate"
	default:
		return otherwise
	}
}

// startSeeing is what to do about a server that does not count statements and locks.
const startSeeing = "start the server with performance_schema = ON, its default"

// scratchError ends a command that works in a scratch schema of its own, where the server does not let it: refused where
// the account may not or the server takes no writes, an error else. grants are what the account needs.
func scratchError(err error, grants, otherwise string) error {
	e := &exitError{code: exitFailed, err: err, hint: otherwise}
	switch mysqlerr.Of(err) {
	case mysqlerr.Denied:
		e.code, e.hint = exitRefused, "the pod's MySQL user needs "+grants
	case mysqlerr.ReadOnly:
		e.code, e.hint = exitRefused, mysqlHint(err, "")
	case mysqlerr.Login, mysqlerr.Full:
		e.hint = mysqlHint(err, "")
	default:
		return e
	}
	e.hint += " (--devstack runs on private servers)"
	return e
}
