// Package mysqlstore is the reservation store that a pod moves to: a pool of unit rows in MySQL 8.0.19 or later,
// with the ledger that both paths share.
//
// It is a reservation.Store (it decides, in stages cutover and complete), a reservation.Ledger (the MySQL half of
// a claim or an adjustment that Redis decides), a reservation.Mirror (it follows in shadow), and it can be walked,
// stocked, fenced and inspected.
//
// It promises that every write is one READ COMMITTED transaction whose first statement reads the pod's fence; that
// at every commit pool rows + live lines + unpooled = on_hand (I2) and on_hand is the sum of the entries (I3); that
// every write is idempotent by id and key; that a commit whose reply was lost is looked up under its own locks
// before anything is said of it; and that a caller's deadline is obeyed even by a server that hangs.
//
// Locks are taken in one order everywhere: pod_fence, inventory_ledger (by primary key), reservation_units,
// reservations, reserved_quantities, ledger_entries.
//
// It never keeps session state beyond the system variables of its DSN, never takes a named lock, never holds a
// connection across anything that is not the database, and never answers "failed" for a commit that may stand.
package mysqlstore
