// Package reconcile looks in a pod's MySQL for what cannot be: figures that do not add up (I2, I3), rows without the row
// that they belong to, rows that should have gone long ago. The reconcile command and a loop of each router stand on it.
//
// It promises that every figure is judged within one consistent snapshot, so that traffic never looks like a fault; that
// what was found on a replica is asked of the primary before it counts, so that lag never looks like a fault; and that
// only what was found in several rounds in a row is alerted. It reads in short READ ONLY transactions, by primary key and
// with pauses, so that it locks nothing, keeps no old row versions alive for long, and leaves the server to others.
//
// It never changes anything: a fault is mended by a person, and each finding says how.
package reconcile
