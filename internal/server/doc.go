// Package server puts a router on the network: the data API (gRPC, gRPC-Web and HTTP+JSON on one cleartext port) and
// the admin listener (health, readiness, metrics, status).
//
// It promises that a malformed request is refused before a store is touched, that every call has a deadline, that a
// panic ends one call and not the process, and that Shutdown answers what was taken. It never decides anything: who
// does is the router's business. The admin listener is never open to others than this machine without a token.
package server
