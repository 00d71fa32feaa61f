// Package allpaths holds one test of mysqlstore as a whole: reserves, claims, releases, expiries, refills, adjustments,
// purges and the rounds of reconcile, all at once on few buckets, by callers in two processes. It promises that no caller sees an
// error that is not a decision, that every deadlock is counted, and that I2 and I3 are exact in every sample, taken from
// outside. It has no code of its own outside its test.
//
// The short form runs with every test, 60 seconds of it with TWINHOLD_SOAK=1.
package allpaths
