package reconcile

// Every statement of this package stands here, as a constant with a conn_tag.
const (
	qIsolate  = "/* conn_tag:reconcile */ SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
	qSnapshot = "/* conn_tag:reconcile */ START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
	qEnd      = "/* conn_tag:reconcile */ ROLLBACK"
)

// afterBucket is where a walk by bucket goes on. MySQL finds the place in the key from this form, and not from
// (a, b, c) > (?, ?, ?).
const (
	afterBucket = `shop_id > ? OR (shop_id = ? AND inventory_item_id > ?)
 OR (shop_id = ? AND inventory_item_id = ? AND inventory_group_id > ?)`
	bucketKey = "shop_id, inventory_item_id, inventory_group_id"
)

// qBuckets gives each bucket's figures, all of one snapshot. Of the journal it sums so many entries at most, and tells
// how many those were: a longer one is walked by qJournal.
const qBuckets = `/* conn_tag:reconcile_buckets */ SELECT l.shop_id, l.inventory_item_id, l.inventory_group_id,
 l.on_hand, l.unpooled, l.version,
 (SELECT COUNT(*) FROM reservation_units u WHERE u.shop_id = l.shop_id
  AND u.inventory_item_id = l.inventory_item_id AND u.inventory_group_id = l.inventory_group_id),
 (SELECT COALESCE(SUM(q.quantity), 0) FROM reserved_quantities q WHERE q.shop_id = l.shop_id
  AND q.inventory_item_id = l.inventory_item_id AND q.inventory_group_id = l.inventory_group_id),
 j.n, j.total
FROM (SELECT ` + bucketKey + `, on_hand, unpooled, version FROM inventory_ledger
 WHERE ` + afterBucket + ` ORDER BY ` + bucketKey + ` LIMIT ?) l,
LATERAL (SELECT COUNT(*) n, COALESCE(SUM(x.delta), 0) total FROM
 (SELECT e.delta FROM ledger_entries e WHERE e.shop_id = l.shop_id
  AND e.inventory_item_id = l.inventory_item_id AND e.inventory_group_id = l.inventory_group_id LIMIT ?) x) j
ORDER BY l.shop_id, l.inventory_item_id, l.inventory_group_id`

// qJournal sums a piece of one bucket's journal, up to a version of the ledger. The last row has the last key.
const qJournal = `/* conn_tag:reconcile_journal */ SELECT x.kind, MAX(x.ref), COUNT(*), COALESCE(SUM(x.delta), 0) FROM
 (SELECT kind, ref, IF(version <= ?, delta, 0) delta FROM ledger_entries
  WHERE shop_id = ? AND inventory_item_id = ? AND inventory_group_id = ? AND (kind > ? OR (kind = ? AND ref > ?))
  ORDER BY kind, ref LIMIT ?) x
GROUP BY x.kind ORDER BY x.kind`

// Rows without the row that they belong to.
const (
	withoutLedger = ` LEFT JOIN inventory_ledger l ON l.shop_id = x.shop_id
 AND l.inventory_item_id = x.inventory_item_id AND l.inventory_group_id = x.inventory_group_id
ORDER BY x.shop_id, x.inventory_item_id, x.inventory_group_id`
	selectBuckets = "SELECT x.shop_id, x.inventory_item_id, x.inventory_group_id, l.version IS NOT NULL FROM (SELECT DISTINCT " + bucketKey
	qUnits        = "/* conn_tag:reconcile_units */ " + selectBuckets + " FROM reservation_units WHERE " + afterBucket +
		" ORDER BY " + bucketKey + " LIMIT ?) x" + withoutLedger
	qEntries = "/* conn_tag:reconcile_entries */ " + selectBuckets + " FROM ledger_entries WHERE " + afterBucket +
		" ORDER BY " + bucketKey + " LIMIT ?) x" + withoutLedger
	qLines = `/* conn_tag:reconcile_lines */ SELECT x.shop_id, x.inventory_item_id, x.inventory_group_id, x.reservation_id,
 x.quantity, COALESCE(r.state, ''), r.cart, l.version IS NOT NULL, EXISTS (SELECT 1 FROM ledger_entries e
  WHERE e.shop_id = x.shop_id AND e.inventory_item_id = x.inventory_item_id AND e.inventory_group_id = x.inventory_group_id
  AND e.kind = 'claim' AND e.ref = x.reservation_id)
FROM (SELECT ` + bucketKey + `, reservation_id, quantity FROM reserved_quantities
 WHERE ` + afterBucket + ` OR (shop_id = ? AND inventory_item_id = ? AND inventory_group_id = ? AND reservation_id > ?)
 ORDER BY ` + bucketKey + `, reservation_id LIMIT ?) x
LEFT JOIN reservations r ON r.id = x.reservation_id` + withoutLedger + ", x.reservation_id"
)

// Live reservations, in the order of their expiry, and marks. Ages are microseconds by this server's clock.
const (
	qHolds = `/* conn_tag:reconcile_holds */ SELECT r.id, r.shop_id, r.expires_at,
 TIMESTAMPDIFF(MICROSECOND, r.expires_at, UTC_TIMESTAMP(6)),
 (SELECT COUNT(*) FROM reserved_quantities q WHERE q.reservation_id = r.id), r.cart
FROM reservations r WHERE r.state = 'held' AND r.expires_at >= ? AND NOT (r.expires_at = ? AND r.id <= ?)
ORDER BY r.state, r.expires_at, r.id LIMIT ?`
	qMarks = `/* conn_tag:reconcile_marks */ SELECT m.reservation_id,
 TIMESTAMPDIFF(MICROSECOND, m.created_at, UTC_TIMESTAMP(6)), r.id IS NOT NULL
FROM reservation_marks m LEFT JOIN reservations r ON r.id = m.reservation_id
WHERE m.reservation_id > ? ORDER BY m.reservation_id LIMIT ?`
)

// How far a replica is behind: its newest reservation, and the first that only the primary has.
const (
	qNewest     = "/* conn_tag:reconcile_lag */ SELECT id FROM reservations ORDER BY id DESC LIMIT 1"
	qFirstAfter = `/* conn_tag:reconcile_lag */ SELECT TIMESTAMPDIFF(MICROSECOND, created_at, UTC_TIMESTAMP(6))
FROM reservations WHERE id > ? ORDER BY id LIMIT 1`
	qReplica = "/* conn_tag:reconcile_lag */ SHOW REPLICA STATUS"
)
