// Package reservation holds the words every other package speaks: reservations, lines, buckets, states,
// stages, the request rules, the errors, and the small interfaces that a store, a ledger and a mirror fulfil.
//
// It promises that a request that was accepted by NewRequest is well formed in every store, and that two
// requests that ask for the same thing have the same hash. It never does input or output, and it imports
// nothing of this module.
package reservation
