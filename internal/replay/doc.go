// Package replay sends a plan of recorded orders through a router and says what came of it: the answers, the
// comparison, and the invariants, computed from the stores themselves.
//
// It never takes a figure of its own for an invariant: I1 to I6 come from the tables and keys of both stores, I11 from
// the tallies in MySQL against those tables and keys.
package replay
