package lab

// Every statement that a step shows or looks with. The tables are in the scratch schema, which is the connections'
// default. The schema's own name is made here and never a caller's, so it is appended (see scratch.go).
const (
	qCreateSchema = "CREATE DATABASE /* conn_tag:lab.schema */ "
	qDropSchema   = "DROP DATABASE IF EXISTS /* conn_tag:lab.schema */ "

	qDropSingle   = "DROP TABLE IF EXISTS /* conn_tag:lab.setup */ single_row"
	qCreateSingle = `CREATE TABLE /* conn_tag:lab.setup */ single_row (
  shop_id BIGINT, item_id BIGINT, group_id BIGINT, available BIGINT NOT NULL, PRIMARY KEY (shop_id, item_id, group_id))`
	qFillSingle = "INSERT /* conn_tag:lab.setup */ INTO single_row VALUES (1, 1, 1, ?)"

	qDropUnits   = "DROP TABLE IF EXISTS /* conn_tag:lab.setup */ units"
	qCreateUnits = `CREATE TABLE /* conn_tag:lab.setup */ units (
  shop_id BIGINT, item_id BIGINT, group_id BIGINT, id INT, PRIMARY KEY (shop_id, item_id, group_id, id))`
	qRefill = `INSERT /* conn_tag:lab.refill */ INTO units
WITH RECURSIVE seq (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM seq WHERE n < ?) SELECT 1, ?, 1, n FROM seq`

	qDropAuto   = "DROP TABLE IF EXISTS /* conn_tag:lab.setup */ units_auto"
	qCreateAuto = `CREATE TABLE /* conn_tag:lab.setup */ units_auto (
  id BIGINT AUTO_INCREMENT PRIMARY KEY, shop_id BIGINT, item_id BIGINT, group_id BIGINT, KEY bucket (shop_id, item_id, group_id))`
	qFillAuto = `INSERT /* conn_tag:lab.setup */ INTO units_auto (shop_id, item_id, group_id)
WITH RECURSIVE seq (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM seq WHERE n < ?) SELECT 1, ?, 1 FROM seq`

	qDropLedger    = "DROP TABLE IF EXISTS /* conn_tag:lab.setup */ ledger"
	qCreateLedger  = "CREATE TABLE /* conn_tag:lab.setup */ ledger (item_id BIGINT PRIMARY KEY, on_hand BIGINT NOT NULL)"
	qFillLedger    = "INSERT /* conn_tag:lab.setup */ INTO ledger VALUES (1, ?)"
	qDropEntries   = "DROP TABLE IF EXISTS /* conn_tag:lab.setup */ entries"
	qCreateEntries = `CREATE TABLE /* conn_tag:lab.setup */ entries (
  item_id BIGINT, reservation_id VARCHAR(36), quantity BIGINT NOT NULL, PRIMARY KEY (item_id, reservation_id))`

	qTakeOne = `UPDATE /* conn_tag:lab.single */ single_row SET available = available - 1
WHERE shop_id = 1 AND item_id = 1 AND group_id = 1 AND available >= 1`
	qAvailable = "SELECT /* conn_tag:lab.single */ available FROM single_row WHERE shop_id = 1 AND item_id = 1 AND group_id = 1"
	qSetTo     = "UPDATE /* conn_tag:lab.single */ single_row SET available = ? WHERE shop_id = 1 AND item_id = 1 AND group_id = 1"
	qTakeIf    = `UPDATE /* conn_tag:lab.single */ single_row SET available = available - ?
WHERE shop_id = 1 AND item_id = 1 AND group_id = 1 AND available >= ?`

	qTakeUnits = `SELECT /* conn_tag:lab.take */ item_id, id FROM units
WHERE shop_id = 1 AND item_id = ? AND group_id = 1 ORDER BY shop_id, item_id, group_id, id LIMIT ? FOR UPDATE SKIP LOCKED`
	qTakeAuto = `SELECT /* conn_tag:lab.take */ item_id, id FROM units_auto
WHERE shop_id = 1 AND item_id = ? AND group_id = 1 LIMIT ? FOR UPDATE SKIP LOCKED`

	qUnionBare = `SELECT /* conn_tag:lab.union */ item_id, id FROM units WHERE shop_id = 1 AND item_id = 1 AND group_id = 1 LIMIT 3 FOR UPDATE SKIP LOCKED
UNION ALL SELECT item_id, id FROM units WHERE shop_id = 1 AND item_id = 2 AND group_id = 1 LIMIT 3 FOR UPDATE SKIP LOCKED`
	qUnionTail = `SELECT /* conn_tag:lab.union */ item_id, id FROM units WHERE shop_id = 1 AND item_id = 1 AND group_id = 1
UNION ALL SELECT item_id, id FROM units WHERE shop_id = 1 AND item_id = 2 AND group_id = 1 LIMIT 3 FOR UPDATE SKIP LOCKED`
	qUnionTailOrdered = `SELECT /* conn_tag:lab.union */ item_id, id FROM units WHERE shop_id = 1 AND item_id = 1 AND group_id = 1
UNION ALL SELECT item_id, id FROM units WHERE shop_id = 1 AND item_id = 2 AND group_id = 1 ORDER BY id LIMIT 3 FOR UPDATE SKIP LOCKED`
	qUnionRight = `(SELECT /* conn_tag:lab.union */ item_id, id FROM units WHERE shop_id = 1 AND item_id = 1 AND group_id = 1 LIMIT 3 FOR UPDATE SKIP LOCKED)
UNION ALL (SELECT item_id, id FROM units WHERE shop_id = 1 AND item_id = 2 AND group_id = 1 LIMIT 3 FOR UPDATE SKIP LOCKED)`

	qOnHand = "SELECT /* conn_tag:lab.claim */ on_hand FROM ledger WHERE item_id = 1"
	qDeduct = "UPDATE /* conn_tag:lab.claim */ ledger SET on_hand = on_hand - ? WHERE item_id = 1 AND on_hand >= ?"
	qEnter  = "INSERT /* conn_tag:lab.claim */ INTO entries VALUES (1, ?, ?)"

	qWatching   = "SELECT /* conn_tag:lab.look */ @@performance_schema"
	qConnection = "SELECT /* conn_tag:lab.look */ CONNECTION_ID()"
	qLocks      = `SELECT /* conn_tag:lab.look */ COALESCE(l.INDEX_NAME, ''), l.LOCK_MODE, l.LOCK_STATUS, COALESCE(l.LOCK_DATA, '')
FROM performance_schema.data_locks l JOIN performance_schema.threads t ON t.THREAD_ID = l.THREAD_ID
WHERE t.PROCESSLIST_ID = ? AND l.OBJECT_SCHEMA = DATABASE() AND l.LOCK_TYPE = 'RECORD' ORDER BY l.INDEX_NAME, l.LOCK_DATA`
	qWaits = `SELECT /* conn_tag:lab.look */ b.PROCESSLIST_ID, COALESCE(l.INDEX_NAME, ''), l.LOCK_MODE, l.LOCK_STATUS, COALESCE(l.LOCK_DATA, '')
FROM performance_schema.data_lock_waits w
JOIN performance_schema.data_locks l ON l.ENGINE = w.ENGINE AND l.ENGINE_LOCK_ID = w.REQUESTING_ENGINE_LOCK_ID
JOIN performance_schema.threads r ON r.THREAD_ID = w.REQUESTING_THREAD_ID
JOIN performance_schema.threads b ON b.THREAD_ID = w.BLOCKING_THREAD_ID
WHERE r.PROCESSLIST_ID = ? AND l.OBJECT_SCHEMA = DATABASE()`
	qStatus = "SHOW ENGINE INNODB STATUS /* conn_tag:lab.look */"
)
