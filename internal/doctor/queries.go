package doctor

// Every statement of this package stands here, as a constant with a conn_tag.
const (
	qVariables = `/* conn_tag:doctor */ SELECT @@SESSION.innodb_lock_wait_timeout, @@SESSION.wait_timeout, @@SESSION.time_zone,
 @@SESSION.sql_mode, @@SESSION.character_set_client, @@SESSION.autocommit, @@SESSION.transaction_isolation,
 LEAST(@@GLOBAL.max_allowed_packet, @@SESSION.max_allowed_packet), @@GLOBAL.innodb_thread_concurrency,
 @@GLOBAL.innodb_flush_log_at_trx_commit, @@GLOBAL.sync_binlog, @@GLOBAL.log_bin, @@GLOBAL.read_only, @@GLOBAL.super_read_only,
 @@GLOBAL.innodb_read_only, @@GLOBAL.performance_schema, @@GLOBAL.innodb_deadlock_detect`

	qHistory = `/* conn_tag:doctor */ SELECT count, status FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'`

	// trx_started is in the server's own zone, whatever the session's.
	qReadViews = `/* conn_tag:doctor */ SELECT trx_mysql_thread_id,
 GREATEST(TIMESTAMPDIFF(SECOND, trx_started, CONVERT_TZ(UTC_TIMESTAMP(), '+00:00', 'SYSTEM')), 0), COALESCE(trx_isolation_level, '')
FROM information_schema.innodb_trx WHERE trx_mysql_thread_id <> CONNECTION_ID() ORDER BY trx_started LIMIT 1`

	qGrants = "/* conn_tag:doctor */ SHOW GRANTS"
	qUser   = "/* conn_tag:doctor */ SELECT CURRENT_USER(), CURRENT_ROLE()"
	qSchema = `/* conn_tag:doctor */ SELECT privilege_type FROM information_schema.schema_privileges
WHERE table_schema = DATABASE() OR DATABASE() LIKE table_schema`
)

// EXPLAIN needs the rights of what it explains, and changes nothing. So these find what the account may do whichever way
// it was given: by name, by pattern, by a role.
const (
	qMayLedger    = "/* conn_tag:doctor */ EXPLAIN UPDATE inventory_ledger SET version = version WHERE FALSE"
	qMayLedgerIn  = "/* conn_tag:doctor */ EXPLAIN INSERT INTO inventory_ledger SELECT * FROM inventory_ledger WHERE FALSE"
	qMayEntries   = "/* conn_tag:doctor */ EXPLAIN INSERT INTO ledger_entries SELECT * FROM ledger_entries WHERE FALSE"
	qMayUnits     = "/* conn_tag:doctor */ EXPLAIN DELETE FROM reservation_units WHERE FALSE"
	qMayUnitsIn   = "/* conn_tag:doctor */ EXPLAIN INSERT INTO reservation_units SELECT * FROM reservation_units WHERE FALSE"
	qMayRecords   = "/* conn_tag:doctor */ EXPLAIN UPDATE reservations SET epoch = epoch WHERE FALSE"
	qMayRecordsIn = "/* conn_tag:doctor */ EXPLAIN INSERT INTO reservations SELECT * FROM reservations WHERE FALSE"
	qMayPurge     = "/* conn_tag:doctor */ EXPLAIN DELETE FROM reservations WHERE FALSE"
	qMayLines     = "/* conn_tag:doctor */ EXPLAIN DELETE FROM reserved_quantities WHERE FALSE"
	qMayLinesIn   = "/* conn_tag:doctor */ EXPLAIN INSERT INTO reserved_quantities SELECT * FROM reserved_quantities WHERE FALSE"
	qMayFence     = "/* conn_tag:doctor */ EXPLAIN UPDATE pod_fence SET epoch = epoch WHERE FALSE"
	qMayFenceIn   = "/* conn_tag:doctor */ EXPLAIN INSERT INTO pod_fence SELECT * FROM pod_fence WHERE FALSE"
	qMayMarks     = "/* conn_tag:doctor */ EXPLAIN DELETE FROM reservation_marks WHERE FALSE"
	qMayMarksIn   = "/* conn_tag:doctor */ EXPLAIN INSERT INTO reservation_marks SELECT * FROM reservation_marks WHERE FALSE"
	qMayAuditIn   = "/* conn_tag:doctor */ EXPLAIN INSERT INTO pod_audit SELECT * FROM pod_audit WHERE FALSE"
	qMayTallies   = "/* conn_tag:doctor */ EXPLAIN UPDATE diff_tallies SET n = n WHERE FALSE"
	qMayTalliesIn = "/* conn_tag:doctor */ EXPLAIN INSERT INTO diff_tallies SELECT * FROM diff_tallies WHERE FALSE"
)

// may is one right that serve needs.
type may struct{ right, table, query string }

func serving() []may {
	return []may{
		{"SELECT, UPDATE", "inventory_ledger", qMayLedger},
		{"INSERT", "inventory_ledger", qMayLedgerIn},
		{"SELECT, INSERT", "ledger_entries", qMayEntries},
		{"SELECT, DELETE", "reservation_units", qMayUnits},
		{"INSERT", "reservation_units", qMayUnitsIn},
		{"SELECT, UPDATE", "reservations", qMayRecords},
		{"INSERT", "reservations", qMayRecordsIn},
		{"DELETE", "reservations", qMayPurge},
		{"SELECT, DELETE", "reserved_quantities", qMayLines},
		{"INSERT", "reserved_quantities", qMayLinesIn},
		{"SELECT, UPDATE", "pod_fence", qMayFence},
		{"INSERT", "pod_fence", qMayFenceIn},
		{"SELECT, DELETE", "reservation_marks", qMayMarks},
		{"INSERT", "reservation_marks", qMayMarksIn},
		{"SELECT, INSERT", "pod_audit", qMayAuditIn},
		{"SELECT, UPDATE", "diff_tallies", qMayTallies},
		{"INSERT", "diff_tallies", qMayTalliesIn},
	}
}
