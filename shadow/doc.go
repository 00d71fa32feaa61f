// Package shadow makes the other store follow the truth.
//
// Queue carries operations to the mirror after their answer: bounded, in order for each reservation, with a budget
// of workers, a deadline of its own and a breaker. Whatever it does not deliver is handed back with the reason, so
// that it can be counted as a gap. CatchUp walks both stores and writes into the mirror what it lacks, each write a
// compare-and-set.
//
// It never delays, fails or crashes the truth's answer (I10).
package shadow
