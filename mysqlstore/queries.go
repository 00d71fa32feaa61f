package mysqlstore

// Every statement of this package stands here, as a constant with a conn_tag in a leading comment. A list of rows
// travels as one JSON argument that JSON_TABLE reads and STRAIGHT_JOIN puts first: each row is then found by its
// primary key, and nothing else is locked, in the order of the list. (A long IN list becomes a scan that waits on
// other people's locks.)
const (
	qIsolateRC = "/* conn_tag:begin */ SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
	qIsolateRR = "/* conn_tag:begin */ SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
	qStart     = "/* conn_tag:begin */ START TRANSACTION"
	qSnapshot  = "/* conn_tag:begin */ START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
	qCommit    = "/* conn_tag:commit */ COMMIT"
	qRollback  = "/* conn_tag:rollback */ ROLLBACK"
)

// The fence.
const (
	selectFence = "SELECT epoch, stage, frozen, frozen_buckets, whole, UTC_TIMESTAMP(6), "
	ofPod       = " FROM pod_fence WHERE pod = ?"
	qFenceShare = "/* conn_tag:fence */ " + selectFence + "0" + ofPod + " FOR SHARE"
	qFenceLock  = "/* conn_tag:fence_lock */ " + selectFence + "0" + ofPod + " FOR UPDATE"
	qFenceRead  = "/* conn_tag:fence_read */ " + selectFence + "(SELECT COUNT(*) FROM reservation_marks)" + ofPod
	qFenceInit  = `/* conn_tag:fence_init */ INSERT INTO pod_fence (pod, epoch, stage, frozen, updated_at)
VALUES (?, ?, ?, FALSE, UTC_TIMESTAMP(6))`
	qFenceRaise = `/* conn_tag:fence_raise */ UPDATE pod_fence SET epoch = ?, stage = ?, updated_at = UTC_TIMESTAMP(6)
WHERE pod = ? AND epoch < ?`
	qFenceFreeze = `/* conn_tag:fence_freeze */ UPDATE pod_fence SET frozen = ?, frozen_buckets = ?, updated_at = UTC_TIMESTAMP(6)
WHERE pod = ?`
	qFenceWhole  = `/* conn_tag:fence_whole */ UPDATE pod_fence SET whole = ? WHERE pod = ? AND epoch = ? AND stage = ?`
	qAuditInsert = `/* conn_tag:audit_insert */ INSERT INTO pod_audit (pod, at, action, raised, body) VALUES (?, ?, ?, ?, ?)
ON DUPLICATE KEY UPDATE id = id`
	qAudit      = "/* conn_tag:audit */ SELECT body FROM pod_audit WHERE pod = ? ORDER BY id"
	qHasRecords = "/* conn_tag:fence_empty */ SELECT EXISTS (SELECT 1 FROM reservations LIMIT 1)"
	qNow        = "/* conn_tag:now */ SELECT UTC_TIMESTAMP(6)"
)

// JSON lists, as they are joined.
const (
	jsonBuckets = `JSON_TABLE(?, '$[*]' COLUMNS (s BIGINT PATH '$[0]', i BIGINT PATH '$[1]', g BIGINT PATH '$[2]')) d`
	jsonUnits   = `JSON_TABLE(?, '$[*]' COLUMNS (s BIGINT PATH '$[0]', i BIGINT PATH '$[1]', g BIGINT PATH '$[2]', n BIGINT PATH '$[3]')) d`
	jsonMoves   = `JSON_TABLE(?, '$[*]' COLUMNS (s BIGINT PATH '$[0]', i BIGINT PATH '$[1]', g BIGINT PATH '$[2]',
  h BIGINT PATH '$[3]', p BIGINT PATH '$[4]', v BIGINT PATH '$[5]')) d`
	jsonEntries = `JSON_TABLE(?, '$[*]' COLUMNS (s BIGINT PATH '$[0]', i BIGINT PATH '$[1]', g BIGINT PATH '$[2]',
  n BIGINT PATH '$[3]', v BIGINT PATH '$[4]')) d`
	jsonIDs = `JSON_TABLE(?, '$[*]' COLUMNS (h CHAR(32) PATH '$')) d`
)

// The ledger.
const (
	onLedger       = " STRAIGHT_JOIN inventory_ledger l ON l.shop_id = d.s AND l.inventory_item_id = d.i AND l.inventory_group_id = d.g"
	selectLedger   = " SELECT l.shop_id, l.inventory_item_id, l.inventory_group_id, l.on_hand, l.unpooled, l.version FROM "
	qLedgerLock    = "/* conn_tag:ledger_lock */" + selectLedger + jsonBuckets + onLedger + " FOR UPDATE OF l"
	qLedgerTryLock = "/* conn_tag:ledger_try_lock */" + selectLedger + jsonBuckets + onLedger + " FOR UPDATE OF l SKIP LOCKED"
	qLedgerMove    = "/* conn_tag:ledger_move */ UPDATE " + jsonMoves + onLedger + `
SET l.on_hand = l.on_hand + d.h, l.unpooled = l.unpooled + d.p, l.version = l.version + d.v
WHERE l.on_hand + d.h >= 0`
	ofBucket       = " WHERE shop_id = ? AND inventory_item_id = ? AND inventory_group_id = ?"
	qLedgerLockOne = "/* conn_tag:ledger_lock */ SELECT shop_id, inventory_item_id, inventory_group_id, on_hand, unpooled, version" +
		" FROM inventory_ledger" + ofBucket + " FOR UPDATE"
	qLedgerMoveOne = "/* conn_tag:ledger_move */ UPDATE inventory_ledger" +
		" SET on_hand = on_hand + ?, unpooled = unpooled + ?, version = version + ?" + ofBucket + " AND on_hand + ? >= 0"
	qLedgerCount = `/* conn_tag:ledger_count */ SELECT d.s, d.i, d.g, l.on_hand, l.unpooled, l.version,
 (SELECT COUNT(*) FROM reservation_units u
  WHERE u.shop_id = d.s AND u.inventory_item_id = d.i AND u.inventory_group_id = d.g)
FROM ` + jsonBuckets + ` LEFT JOIN inventory_ledger l
 ON l.shop_id = d.s AND l.inventory_item_id = d.i AND l.inventory_group_id = d.g`
	qLedgerInsert = `/* conn_tag:ledger_insert */ INSERT INTO inventory_ledger
 (shop_id, inventory_item_id, inventory_group_id, on_hand, unpooled, version)
SELECT d.s, d.i, d.g, d.n, d.n, 1 FROM ` + jsonUnits
	qLedgerWalk = `/* conn_tag:ledger_walk */ SELECT shop_id, inventory_item_id, inventory_group_id, on_hand, unpooled, version
FROM inventory_ledger
WHERE shop_id > ? OR (shop_id = ? AND inventory_item_id > ?) OR (shop_id = ? AND inventory_item_id = ? AND inventory_group_id > ?)
ORDER BY shop_id, inventory_item_id, inventory_group_id LIMIT ?`
)

// The journal.
const (
	qEntriesClaim = `/* conn_tag:entries_claim */ INSERT INTO ledger_entries
 (shop_id, inventory_item_id, inventory_group_id, kind, ref, delta, version, created_at)
SELECT d.s, d.i, d.g, 'claim', ?, d.n, d.v, ? FROM ` + jsonEntries
	qEntriesStock = `/* conn_tag:entries_stock */ INSERT INTO ledger_entries
 (shop_id, inventory_item_id, inventory_group_id, kind, ref, delta, version, created_at)
SELECT d.s, d.i, d.g, 'stock', '', d.n, 1, ? FROM ` + jsonUnits
	qEntryAdjust = `/* conn_tag:entry_adjust */ INSERT INTO ledger_entries
 (shop_id, inventory_item_id, inventory_group_id, kind, ref, adjustment_id, delta, version, forced, created_at)
VALUES (?, ?, ?, 'adjust', ?, ?, ?, ?, ?, ?)`
	qAdjustment = `/* conn_tag:adjustment */ SELECT inventory_item_id, inventory_group_id, delta, version, forced
FROM ledger_entries WHERE shop_id = ? AND adjustment_id = ?`
	qClaimEntries = `/* conn_tag:claim_entries */ SELECT inventory_item_id, inventory_group_id, delta, version, created_at
FROM ledger_entries WHERE ref = ? AND kind = 'claim' AND shop_id = ?
ORDER BY inventory_item_id, inventory_group_id`
)

// The pool. qUnitsOf is repeated for each line, numbered and joined by unionAll, and ends in one of the two lock clauses.
// qUnitsDeleteRun ends at its last row by the LIMIT: looking for the end of the range, it would wait for whoever holds
// the row behind it.
const (
	tagUnitsTake  = "/* conn_tag:units_take */ "
	tagUnitsForce = "/* conn_tag:units_force */ "
	qUnitsOf      = `(SELECT ?, id FROM reservation_units
WHERE shop_id = ? AND inventory_item_id = ? AND inventory_group_id = ?
ORDER BY shop_id, inventory_item_id, inventory_group_id, id LIMIT ? `
	lockSkip     = "FOR UPDATE SKIP LOCKED)"
	lockWait     = "FOR UPDATE)"
	unionAll     = " UNION ALL "
	qUnitsDelete = "/* conn_tag:units_delete */ DELETE u FROM " + jsonUnits + ` STRAIGHT_JOIN reservation_units u
 ON u.shop_id = d.s AND u.inventory_item_id = d.i AND u.inventory_group_id = d.g AND u.id = d.n`
	qUnitsDeleteRun = `/* conn_tag:units_delete_run */ DELETE FROM reservation_units
WHERE shop_id = ? AND inventory_item_id = ? AND inventory_group_id = ? AND id BETWEEN ? AND ?
ORDER BY shop_id, inventory_item_id, inventory_group_id, id LIMIT ?`
	qUnitsInsert = `/* conn_tag:refill_insert */ INSERT INTO reservation_units (shop_id, inventory_item_id, inventory_group_id, id)
SELECT ?, ?, ?, d.n FROM JSON_TABLE(?, '$[*]' COLUMNS (n INT PATH '$')) d`
	qUnitIDs = `/* conn_tag:refill_ids */ SELECT id FROM reservation_units
WHERE shop_id = ? AND inventory_item_id = ? AND inventory_group_id = ?`
	qUnitsTop = `/* conn_tag:trim_ids */ SELECT id FROM reservation_units
WHERE shop_id = ? AND inventory_item_id = ? AND inventory_group_id = ?
ORDER BY shop_id DESC, inventory_item_id DESC, inventory_group_id DESC, id DESC LIMIT ? FOR UPDATE SKIP LOCKED`
)

// Reservations.
const (
	recordColumns = ` r.id, r.shop_id, r.idem_key, r.request_hash, r.cart, r.outcome, r.shortages, r.state, r.decided_by,
 r.epoch, r.unmirrored, r.judged, r.late, r.created_at, r.expires_at, r.purge_at, r.pinned_at, r.released_at,
 r.expired_at, r.claimed_at, SYSDATE(6) `
	selectRecord    = "SELECT" + recordColumns + "FROM reservations r "
	qRecord         = "/* conn_tag:record */ " + selectRecord + "WHERE r.id = ?"
	qRecordLock     = "/* conn_tag:record_lock */ " + selectRecord + "WHERE r.id = ? FOR UPDATE"
	qRecordByKey    = "/* conn_tag:record_by_key */ " + selectRecord + "WHERE r.shop_id = ? AND r.idem_key = ?"
	qRecordsTryLock = "/* conn_tag:records_try_lock */ SELECT" + recordColumns + "FROM " + jsonIDs +
		" STRAIGHT_JOIN reservations r ON r.id = UNHEX(d.h) FOR UPDATE OF r SKIP LOCKED"
	qRecordsWalk = "/* conn_tag:walk */ " + selectRecord +
		"WHERE r.id > ? AND (r.purge_at > UTC_TIMESTAMP(6) OR r.state = 'held') ORDER BY r.id LIMIT ?"
	qSettle = "/* conn_tag:settle */ SELECT 1 FROM reservations WHERE id = ? FOR UPDATE"

	qRecordInsert = `/* conn_tag:record_insert */ INSERT INTO reservations
 (id, shop_id, idem_key, request_hash, cart, outcome, shortages, state, decided_by, epoch, unmirrored, judged, late,
  created_at, expires_at, purge_at, pinned_at, released_at, expired_at, claimed_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
	qRecordUpdate = `/* conn_tag:record_update */ UPDATE reservations
SET outcome = ?, shortages = ?, state = ?, decided_by = ?, epoch = ?, unmirrored = ?, judged = ?, late = ?,
 created_at = ?, expires_at = ?, purge_at = ?, pinned_at = ?, released_at = ?, expired_at = ?, claimed_at = ?
WHERE id = ?`
	qKeyDrop   = "/* conn_tag:key_drop */ UPDATE reservations SET idem_key = NULL WHERE id = ?"
	qKeyRetire = `/* conn_tag:key_retire */ UPDATE reservations SET idem_key = NULL
WHERE id = ? AND purge_at <= UTC_TIMESTAMP(6) AND state <> 'held'`
	qRecordsExpire = "/* conn_tag:records_expire */ UPDATE " + jsonIDs +
		" STRAIGHT_JOIN reservations r ON r.id = UNHEX(d.h) SET r.state = 'expired', r.expired_at = ?"
)

// Marks. Whoever writes one holds the reservation's row.
const (
	qMarkSet    = "/* conn_tag:mark */ UPDATE reservations SET unmirrored = TRUE WHERE id = ?"
	qMarkClear  = "/* conn_tag:unmark */ UPDATE reservations SET unmirrored = FALSE WHERE id = ?"
	qMarkInsert = `/* conn_tag:mark */ INSERT INTO reservation_marks (reservation_id, created_at) VALUES (?, ?)
ON DUPLICATE KEY UPDATE reservation_id = reservation_id`
	qMarkDelete = "/* conn_tag:unmark */ DELETE FROM reservation_marks WHERE reservation_id = ?"
	qMarked     = "/* conn_tag:marked */ SELECT STRAIGHT_JOIN" + recordColumns + `FROM reservation_marks m
JOIN reservations r ON r.id = m.reservation_id WHERE m.reservation_id > ? ORDER BY m.reservation_id LIMIT ?`
	qMarksDebt = `/* conn_tag:marks_debt */ SELECT (SELECT COUNT(*) FROM reservation_marks), COUNT(DISTINCT r.id),
 COALESCE(SUM(q.quantity), 0), COALESCE(MAX(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), r.expires_at)), 0)
FROM reservation_marks m
JOIN reservations r ON r.id = m.reservation_id AND r.state = 'held'
JOIN reserved_quantities q ON q.reservation_id = r.id`
	qInspectMarks = "/* conn_tag:inspect */ SELECT reservation_id FROM reservation_marks ORDER BY reservation_id"
)

// Live lines.
const (
	qLinesInsert = `/* conn_tag:lines_insert */ INSERT INTO reserved_quantities
 (shop_id, inventory_item_id, inventory_group_id, reservation_id, quantity)
SELECT d.s, d.i, d.g, ?, d.n FROM ` + jsonUnits
	qLinesDelete     = "/* conn_tag:lines_delete */ DELETE FROM reserved_quantities WHERE reservation_id = ?"
	qLinesDeleteMany = "/* conn_tag:lines_delete_many */ DELETE q FROM " + jsonIDs +
		" STRAIGHT_JOIN reserved_quantities q ON q.reservation_id = UNHEX(d.h)"
)

// Sweeping.
const (
	qDue = `/* conn_tag:due */ SELECT r.id, r.shop_id, r.cart, r.expires_at FROM reservations r
WHERE r.state = 'held' AND r.expires_at <= UTC_TIMESTAMP(6) AND r.expires_at >= ? AND NOT (r.expires_at = ? AND r.id <= ?)
ORDER BY r.state, r.expires_at, r.id LIMIT ?`
	qDueOfBucket = `/* conn_tag:due_of_bucket */ SELECT r.id, r.shop_id, r.cart, r.expires_at
FROM reservations r FORCE INDEX (reservations_due) STRAIGHT_JOIN reserved_quantities q
 ON q.shop_id = ? AND q.inventory_item_id = ? AND q.inventory_group_id = ? AND q.reservation_id = r.id
WHERE r.state = 'held' AND r.expires_at <= UTC_TIMESTAMP(6) LIMIT ?`
	qPurgeLock = `/* conn_tag:purge_lock */ SELECT id FROM reservations
WHERE purge_at <= UTC_TIMESTAMP(6) AND state <> 'held' AND unmirrored = FALSE ORDER BY purge_at LIMIT ? FOR UPDATE SKIP LOCKED`
	qPurge = "/* conn_tag:purge */ DELETE r FROM " + jsonIDs + " STRAIGHT_JOIN reservations r ON r.id = UNHEX(d.h)"
)

// Shared transactions. qGuard fails where the statement before it matched another number of rows. The values of
// qRecordsInsert and qLinesInsertMany are repeated for each row, joined by commas; so is the last value of the lists that
// qRecordsClaimPlain, qRecordsReleasePlain and qLinesDeleteOf end in. Their hint keeps a long list from becoming a scan.
const (
	qGuard = "/* conn_tag:guard */ DO IF(ROW_COUNT() = ?, 0, (SELECT 1 UNION ALL SELECT 2))"

	qRecords      = "/* conn_tag:records */ SELECT /*+ INDEX(r PRIMARY) */" + recordColumns + "FROM reservations r WHERE r.id IN ("
	qRecordsLock  = "/* conn_tag:records_lock */ SELECT" + recordColumns + "FROM " + jsonIDs + " STRAIGHT_JOIN reservations r ON r.id = UNHEX(d.h) FOR UPDATE OF r"
	qRecordsByKey = "/* conn_tag:records_by_key */ SELECT" + recordColumns + `FROM
JSON_TABLE(?, '$[*]' COLUMNS (s BIGINT PATH '$[0]', k VARCHAR(510) PATH '$[1]')) d
STRAIGHT_JOIN reservations r ON r.shop_id = d.s AND r.idem_key = UNHEX(d.k)`
	qRecordsInsert = `/* conn_tag:records_insert */ INSERT INTO reservations
 (id, shop_id, idem_key, request_hash, cart, outcome, shortages, state, decided_by, epoch, unmirrored, judged,
  created_at, expires_at, purge_at) VALUES `
	recordValues     = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
	qLinesInsertMany = `/* conn_tag:lines_insert_many */ INSERT INTO reserved_quantities
 (shop_id, inventory_item_id, inventory_group_id, reservation_id, quantity) VALUES `
	lineValues   = "(?, ?, ?, ?, ?)"
	qMarksInsert = "/* conn_tag:marks_insert */ INSERT INTO reservation_marks (reservation_id, created_at) SELECT UNHEX(d.h), ? FROM " + jsonIDs
	qRecordsEnd  = `/* conn_tag:records_end */ UPDATE JSON_TABLE(?, '$[*]' COLUMNS (h CHAR(32) PATH '$[0]', k INT PATH '$[1]',
  l INT PATH '$[2]', m INT PATH '$[3]', p DATETIME(6) PATH '$[4]')) d STRAIGHT_JOIN reservations r ON r.id = UNHEX(d.h)
SET r.state = IF(d.k = 1, 'claimed', 'released'), r.late = d.l, r.unmirrored = d.m, r.pinned_at = d.p,
 r.claimed_at = IF(d.k = 1, CAST(? AS DATETIME(6)), r.claimed_at), r.released_at = IF(d.k = 1, r.released_at, CAST(? AS DATETIME(6)))`
	qRecordsClaimPlain   = "/* conn_tag:records_end */ UPDATE /*+ INDEX(r PRIMARY) */ reservations r SET r.state = 'claimed', r.claimed_at = ? WHERE r.id IN ("
	qRecordsReleasePlain = "/* conn_tag:records_end */ UPDATE /*+ INDEX(r PRIMARY) */ reservations r SET r.state = 'released', r.released_at = ? WHERE r.id IN ("
	qLinesDeleteOf       = "/* conn_tag:lines_delete_many */ DELETE /*+ INDEX(q PRIMARY) */ FROM reserved_quantities q" + ofBucket + " AND reservation_id IN ("
	qRecordsLeave        = `/* conn_tag:records_leave */ UPDATE JSON_TABLE(?, '$[*]' COLUMNS (h CHAR(32) PATH '$[0]', s VARCHAR(16) PATH '$[1]',
  l INT PATH '$[2]', p DATETIME(6) PATH '$[3]', b DATETIME(6) PATH '$[4]', e DATETIME(6) PATH '$[5]', c DATETIME(6) PATH '$[6]')) d
STRAIGHT_JOIN reservations r ON r.id = UNHEX(d.h)
SET r.state = d.s, r.late = d.l, r.pinned_at = d.p, r.released_at = d.b, r.expired_at = d.e, r.claimed_at = d.c`
	qEntriesClaimMany = `/* conn_tag:entries_claim_many */ INSERT INTO ledger_entries
 (shop_id, inventory_item_id, inventory_group_id, kind, ref, delta, version, created_at) VALUES `
	entryValues = "(?, ?, ?, 'claim', ?, ?, ?, ?)"
)

// Plain claims, in one packet: what the server finds is compared by the server. @twinhold_version is set and read within
// it, and means nothing outside.
const (
	qLedgerClaim = "/* conn_tag:ledger_move */ UPDATE inventory_ledger SET on_hand = on_hand + ?, version = version + ?" + ofBucket +
		" AND on_hand + ? >= 0 AND ROW_COUNT() = ? AND EXISTS (SELECT 1" + ofPod + " AND epoch = ? AND stage = ?)"
	qVersionKeep = "/* conn_tag:version */ SELECT version INTO @twinhold_version FROM inventory_ledger" + ofBucket
	qVersionKept = "/* conn_tag:version */ SELECT @twinhold_version"
	claimRecords = "/* conn_tag:records_end */ UPDATE /*+ INDEX(r PRIMARY) */ reservations r SET r.state = 'claimed', r.claimed_at = ?"
	pinnedBy     = ", r.pinned_at = CASE r.id"
	pinnedWhen   = " WHEN ? THEN ?"
	pinnedElse   = " ELSE r.pinned_at END"
	ofClaimable  = " WHERE r.shop_id = ? AND r.state = 'held' AND r.unmirrored = FALSE AND r.expires_at > UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND" +
		" AND ABS(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), ?)) < ? AND r.id IN ("
	qLinesClaim = "/* conn_tag:lines_delete_many */ DELETE /*+ INDEX(q PRIMARY) */ FROM reserved_quantities q" + ofBucket +
		" AND quantity = ? AND ROW_COUNT() = ? AND reservation_id IN ("
	entryKept = "(?, ?, ?, 'claim', ?, ?, @twinhold_version - ?, ?)"
)

// Inspection.
const (
	qInspectLedger = `/* conn_tag:inspect */ SELECT shop_id, inventory_item_id, inventory_group_id, on_hand, unpooled, version
FROM inventory_ledger ORDER BY shop_id, inventory_item_id, inventory_group_id`
	qInspectUnits = `/* conn_tag:inspect */ SELECT shop_id, inventory_item_id, inventory_group_id, COUNT(*)
FROM reservation_units GROUP BY shop_id, inventory_item_id, inventory_group_id`
	qInspectLines = `/* conn_tag:inspect */ SELECT shop_id, inventory_item_id, inventory_group_id, reservation_id, quantity
FROM reserved_quantities ORDER BY shop_id, inventory_item_id, inventory_group_id, reservation_id`
	qInspectRecords = "/* conn_tag:inspect */ " + selectRecord + "ORDER BY r.id"
	qInspectEntries = `/* conn_tag:inspect */ SELECT shop_id, inventory_item_id, inventory_group_id, kind, ref, delta, version, forced, created_at
FROM ledger_entries ORDER BY shop_id, inventory_item_id, inventory_group_id, kind, ref`
)

// Doctor.
const (
	qServer  = "/* conn_tag:doctor */ SELECT VERSION(), @@version_comment, @@GLOBAL.binlog_format, @@GLOBAL.log_bin, UTC_TIMESTAMP(6)"
	qTrySkip = "/* conn_tag:doctor */ SELECT pod FROM pod_fence WHERE pod = ? FOR UPDATE SKIP LOCKED"
)
