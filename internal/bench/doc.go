// Package bench measures ways to reserve, to claim and to reject side by side, on the same servers, in one run: the
// single row as it is written in the field and as an expert would write it, an optimistic row, a Redis counter, and
// the pool of package mysqlstore without and with combining.
//
// It promises that schemes alternate within a run and that a ratio is the median of the ratios of single rounds, so
// that a machine that slows down slows them all; that latencies of an open loop count from when a call was due; and
// that after each round every scheme has to account for every unit: what callers were granted is what left the stock,
// else the run is an error (*InexactError) and not a figure.
//
// It writes only to schemas and keys that it made up, and removes them at the end. It never touches a table of a pod.
package bench
