package main

import (
	"strings"
	"testing"
)

// finding gives what doctor says of one check of pod-1.
func finding(t *testing.T, v map[string]any, store, check string) map[string]any {
	t.Helper()
	for _, f := range v["findings"].([]any) {
		d := f.(map[string]any)
		if d["pod"] == "pod-1" && d["store"] == store && d["check"] == check {
			return d
		}
	}
	t.Fatalf("doctor says nothing of %s %s: %v", store, check, v)
	return nil
}

func TestDoctorExaminesTheServer(t *testing.T) {
	t.Parallel()
	c, stack := newClient(t)
	v := c.json(exitDone, "doctor")
	c.want(v, "ok", true)
	for check, result := range map[string]string{
		"version": resultOK, "lock_wait": resultOK, "session": resultOK, "isolation": resultOK, "max_allowed_packet": resultOK,
		"thread_concurrency": resultOK, "redo_flush": resultOK, "binlog_sync": resultOK, "read_only": resultOK, "performance_schema": resultOK,
		"deadlock_detect": resultOK, "purge_lag": resultOK, "read_views": resultOK, "privileges_serve": resultOK, "privileges_ddl": resultOK,
		"privileges_conns":  resultOK,
		"privileges_global": resultWarning,
	} {
		c.want(finding(t, v, "mysql", check), "result", result)
	}
	c.configReplica()
	v = c.json(exitDone, "doctor")
	c.want(finding(t, v, "mysql_replica", "follows"), "result", resultWarning)

	hand(t, stack, "SET GLOBAL innodb_flush_log_at_trx_commit = 2") // a warning only: the exit says that all is well
	v = c.json(exitDone, "doctor")
	c.want(finding(t, v, "mysql", "redo_flush"), "result", resultWarning)
	hand(t, stack, "SET GLOBAL read_only = ON")
	res := runCLI(t, "doctor", "--config", c.config)
	if res.code != exitRefused || !strings.Contains(res.out, "read_only is on") || !strings.Contains(res.out, "-> does the pod's mysql name a replica?") || !strings.Contains(res.err, "\nhint: ") {
		t.Errorf("a server that takes no writes: exit %d\n%s%s", res.code, res.out, res.err)
	}
	hand(t, stack, "SET GLOBAL read_only = OFF")
	c.want(c.json(exitDone, "doctor"), "ok", true)
}
