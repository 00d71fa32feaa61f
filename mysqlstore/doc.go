// Package mysqlstore is the reservation store that a pod moves to: a pool of unit rows in MySQL 8.0.19 or later,
// with the ledger that both paths share.
//
// It is a reservation.Store (it decides, in stages cutover and complete), a reservation.Ledger (the MySQL half of
// a claim or an adjustment, in every stage but complete), a reservation.Mirror (it follows, and takes what catch-up
// brings), a reservation.Agreer (its half of a grant in handover), and it can be walked, stocked, fenced and inspected.
// Cut is the store for a router that has lost its Redis: each outcome carries a mark.
//
// It promises that every write is one READ COMMITTED transaction whose first statement reads the pod's fence: one of
// an older epoch is refused, one of a newer epoch raises the fence first, and once the fence is up nobody writes with
// an older epoch any more (I8). It promises that
// at every commit pool rows + live lines + unpooled = on_hand (I2) and on_hand is the sum of the entries (I3); that
// every write is idempotent by id and key; that a commit whose reply was lost is looked up under its own locks
// before anything is said of it; and that a caller's deadline is obeyed even by a server that hangs.
//
// Callers that want the same bucket at the same time are carried out together, in lanes (lane.go): an idle bucket waits
// for nothing, a bad request harms nobody else, and whoever goes while his transaction runs is told that its outcome
// is unknown. What is sold out is remembered for 50 ms at most, and not past anything that this process gives back.
// Pools are refilled below a mark, by what this process took of them.
//
// Locks are taken in one order everywhere: pod_fence, inventory_ledger (by primary key), reservation_units,
// reservations, reserved_quantities, ledger_entries, reservation_marks. A change of the fence holds pod_fence and
// pod_audit alone.
//
// It never keeps session state beyond the system variables of its DSN, never takes a named lock, never holds a
// connection across anything that is not the database, and never answers "failed" for a commit that may stand.
package mysqlstore
