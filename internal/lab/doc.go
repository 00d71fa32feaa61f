// Package lab shows the locking facts that the pool's design rests on, live, on a real MySQL and a real Redis: eight
// short steps, each with the statements, what the server says of its locks, and what that means for the design.
//
// It works in a scratch schema of its own, whose name begins with twinhold_lab_, and under Redis keys of its own; both
// are removed at the end, also after an error or an interrupt. It never reads or writes a pod's tables or keys, and
// never changes a setting of the server. A fact that the server does not confirm is a problem of the result, not an
// error: the error is for a server that could not be asked.
package lab
