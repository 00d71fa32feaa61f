// Package conntag tells who holds the connections to MySQL. It wraps the driver's connector: each statement's
// /* conn_tag:name */ is read, and every second from a connection's checkout from the pool to its return is put to one
// name. The time up to a statement's end is that statement's; idle time inside a checkout belongs to the statement
// before it, since that is who keeps the connection.
//
// It promises that the sum over all names is the time for which connections were out of the pool, that a long hold is
// seen while it lasts, and that every optional interface which database/sql looks for in the MySQL driver is still
// there. It adds no round trip, changes no statement and no error, and allocates nothing for a statement whose name is
// known and that gives no rows (one small value for a query's rows).
//
// Several statements in one packet are one, under the first one's name.
//
// It never sees the statements that the driver itself sends while it connects. What the driver sends for BeginTx,
// Commit, Rollback and Ping has no comment and is counted under driver.begin and so on.
package conntag
