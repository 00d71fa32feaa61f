// Package shadow makes the two stores of a pod follow each other.
//
// Queue carries operations to the mirror after their answer: bounded, in order for each reservation, with a budget
// of workers, a deadline of its own and a breaker. Whatever it does not deliver is handed back with the reason, so
// that it can be counted as a gap. Either is a mirror that is the one store or the other, by the stage.
//
// CatchUp walks both stores and writes into each what it lacks, each write a compare-and-set, by rules that
// internal/protocolmodel explores: all of them (Run), a span in order of creation (Walk), or some by their ids (Look), such
// as those that a router has noted in Missed. DrainMarks is its quick part for what was answered without Redis. Its Survey counts
// the same differences and writes nothing: the debt, and the gate of cutover. Restore rebuilds a Redis that has lost
// writes from MySQL.
//
// It never delays, fails or crashes the truth's answer (I10), never ends a hold that somebody was promised, and never
// lowers the ledger.
package shadow
