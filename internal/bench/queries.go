package bench

// Every statement of this package stands here, as a constant with a conn_tag. Several in one packet are separated by
// semicolons.

// The schema of a scheme. Its name is one of ours.
const (
	qSchemaCreate = "CREATE DATABASE /* conn_tag:bench_setup */ "
	qSchemaDrop   = "DROP DATABASE IF EXISTS /* conn_tag:bench_setup */ "
	qStart        = "/* conn_tag:bench_row */ START TRANSACTION"
	qRollback     = "/* conn_tag:bench_row */ ROLLBACK"
	qCommit       = "/* conn_tag:bench_row */ COMMIT"
)

// The single row: a counter per bucket, and a header per reservation with what ours has too: a unique key for
// retries, an index to find what is due.
const (
	qRowInventory = `CREATE /* conn_tag:bench_setup */ TABLE inventory (
  shop_id            BIGINT NOT NULL,
  inventory_item_id  BIGINT NOT NULL,
  inventory_group_id BIGINT NOT NULL,
  available          BIGINT NOT NULL,
  version            BIGINT NOT NULL DEFAULT 0,
  PRIMARY KEY (shop_id, inventory_item_id, inventory_group_id)
) ENGINE = InnoDB`
	qRowHeaders = `CREATE /* conn_tag:bench_setup */ TABLE headers (
  id                 BINARY(16)     NOT NULL,
  shop_id            BIGINT         NOT NULL,
  idem_key           VARBINARY(255) NOT NULL,
  inventory_item_id  BIGINT         NOT NULL,
  inventory_group_id BIGINT         NOT NULL,
  quantity           BIGINT         NOT NULL,
  state              VARBINARY(16)  NOT NULL,
  created_at         DATETIME(6)    NOT NULL,
  expires_at         DATETIME(6)    NOT NULL,
  PRIMARY KEY (id),
  UNIQUE KEY headers_key (shop_id, idem_key),
  KEY headers_due (state, expires_at)
) ENGINE = InnoDB`
	qRowStock = `/* conn_tag:bench_setup */ INSERT INTO inventory (shop_id, inventory_item_id, inventory_group_id, available)
SELECT 1, d.n, 1, ? FROM JSON_TABLE(?, '$[*]' COLUMNS (n BIGINT PATH '$')) d`
	qRowBooks = `/* conn_tag:bench_books */ SELECT (SELECT COALESCE(SUM(available), 0) FROM inventory),
 COALESCE(SUM(IF(state = 'held', quantity, 0)), 0), COALESCE(SUM(state = 'held'), 0), COALESCE(SUM(state = 'rejected'), 0)
FROM headers`

	rowBucket  = "WHERE shop_id = 1 AND inventory_item_id = ? AND inventory_group_id = 1"
	rowColumns = " headers (id, shop_id, idem_key, inventory_item_id, inventory_group_id, quantity, state, created_at, expires_at) "
	rowTimes   = "UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL 1 DAY"

	qRowTake   = "/* conn_tag:bench_row */ UPDATE inventory SET available = available - 1 " + rowBucket + " AND available >= 1"
	qRowInsert = "/* conn_tag:bench_row */ INSERT INTO" + rowColumns + "VALUES (?, 1, ?, ?, 1, 1, ?, " + rowTimes + ")"
	qRowByKey  = "/* conn_tag:bench_row */ SELECT state FROM headers WHERE shop_id = 1 AND idem_key = ?"
	qRowReject = "/* conn_tag:bench_row */ INSERT INTO" + rowColumns + "SELECT ?, 1, ?, ?, 1, 1, 'rejected', " + rowTimes +
		" FROM inventory " + rowBucket + " AND available < 1"
)

// The single row at its best, and the optimistic one.
const (
	qBestInsert = "/* conn_tag:bench_row */ INSERT INTO" + rowColumns + "VALUES (?, 1, ?, ?, 1, 1, 'held', " + rowTimes + ")"
	qBestReject = "/* conn_tag:bench_row */ UPDATE headers SET state = 'rejected' WHERE id = ? AND ROW_COUNT() = 0"
	qSleep      = "/* conn_tag:bench_row */ DO SLEEP(?)"
	qBest       = qStart + "; " + qBestInsert + "; " + qRowTake + "; " + qBestReject + "; " + qCommit
	qBestHold   = qStart + "; " + qBestInsert + "; " + qRowTake + "; " + qBestReject + "; " + qSleep + "; " + qCommit

	qOptimisticTake = "/* conn_tag:bench_row */ UPDATE inventory SET available = available - 1, version = version + 1 " +
		rowBucket + " AND version = ? AND available >= 1"
	qOptimisticInsert = "/* conn_tag:bench_row */ INSERT INTO" + rowColumns +
		"SELECT ?, 1, ?, ?, 1, 1, 'held', " + rowTimes + " FROM DUAL WHERE ROW_COUNT() = 1"
	qOptimistic     = qStart + "; " + qOptimisticTake + "; " + qOptimisticInsert + "; " + qCommit
	qOptimisticHold = qStart + "; " + qOptimisticTake + "; " + qOptimisticInsert +
		"; /* conn_tag:bench_row */ DO SLEEP(? * ROW_COUNT()); " + qCommit
	qRowVersion = "/* conn_tag:bench_row */ SELECT available, version FROM inventory " + rowBucket
)

// The pool. Holds to be claimed are laid in bulk: [["id in hexadecimal",item],...].
const (
	qPoolBooks = `/* conn_tag:bench_books */ SELECT l.on_hand, l.unpooled,
 (SELECT COUNT(*) FROM reservation_units),
 (SELECT COALESCE(SUM(quantity), 0) FROM reserved_quantities),
 (SELECT COUNT(*) FROM reservations WHERE outcome = 'granted'),
 (SELECT COUNT(*) FROM reservations WHERE outcome = 'rejected'),
 (SELECT COUNT(*) FROM reservations WHERE state = 'released'),
 (SELECT COALESCE(SUM(delta), 0) FROM ledger_entries)
FROM (SELECT COALESCE(SUM(on_hand), 0) AS on_hand, COALESCE(SUM(unpooled), 0) AS unpooled FROM inventory_ledger) l`

	jsonHolds    = "JSON_TABLE(?, '$[*]' COLUMNS (h CHAR(32) PATH '$[0]', i BIGINT PATH '$[1]')) d"
	qHoldsLedger = `/* conn_tag:bench_holds */ UPDATE inventory_ledger l
JOIN (SELECT d.i, COUNT(*) AS n FROM ` + jsonHolds + ` GROUP BY d.i) t
 ON l.shop_id = 1 AND l.inventory_item_id = t.i AND l.inventory_group_id = 1 SET l.unpooled = l.unpooled - t.n`
	qHoldsRecords = `/* conn_tag:bench_holds */ INSERT INTO reservations
 (id, shop_id, idem_key, request_hash, cart, outcome, state, decided_by, epoch, created_at, expires_at, purge_at)
SELECT UNHEX(d.h), 1, d.h, REPEAT('b', 32), CONCAT('[[', d.i, ',1,1]]'), 'granted', 'held', 'mysql', 1,
 UTC_TIMESTAMP(6), UTC_TIMESTAMP(6) + INTERVAL 1 DAY, UTC_TIMESTAMP(6) + INTERVAL 3 DAY FROM ` + jsonHolds
	qHoldsLines = `/* conn_tag:bench_holds */ INSERT INTO reserved_quantities
 (shop_id, inventory_item_id, inventory_group_id, reservation_id, quantity)
SELECT 1, d.i, 1, UNHEX(d.h), 1 FROM ` + jsonHolds
)

// qMirrorBooks: gaps and differences without an explanation, as the tallies have them, and the grants that MySQL knows.
const qMirrorBooks = `/* conn_tag:bench.books */ SELECT
 (SELECT COALESCE(SUM(n), 0) FROM diff_tallies WHERE kind = 'gap'),
 (SELECT COALESCE(SUM(n), 0) FROM diff_tallies WHERE kind = 'unexplained'),
 (SELECT COUNT(*) FROM reservations WHERE outcome = 'granted')`
