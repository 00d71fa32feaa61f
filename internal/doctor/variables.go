package doctor

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/twinhold/twinhold/reservation"
)

// variables are what the server and our connection say of themselves.
type variables struct {
	lockWait, idle          int64
	zone, mode, charset     string
	autocommit              bool
	isolation               string
	packet                  int64
	threads                 int64
	flush, syncBinlog       int64
	logBin                  bool
	readOnly, superReadOnly bool
	innodbReadOnly, schema  bool
	deadlocks               bool
}

func readVariables(ctx context.Context, db *sql.DB) (v variables, err error) {
	err = db.QueryRowContext(ctx, qVariables).Scan(&v.lockWait, &v.idle, &v.zone, &v.mode, &v.charset, &v.autocommit, &v.isolation, &v.packet, &v.threads,
		&v.flush, &v.syncBinlog, &v.logBin, &v.readOnly, &v.superReadOnly, &v.innodbReadOnly, &v.schema, &v.deadlocks)
	if err != nil {
		return v, fmt.Errorf("doctor: read the server's variables: %w", err)
	}
	return v, nil
}

func (v variables) findings() []reservation.Finding {
	return []reservation.Finding{v.lockWaits(), v.session(), v.isolationOf(), v.packets(), v.concurrency(), v.redo(), v.binlog(), v.writable(), v.statements(), v.deadlock()}
}

const (
	minLockWait, maxLockWait = 1, 3
	maxIdle                  = 60
	minPacket                = 16 << 20
)

// lockWaits: whoever waits longer for a lock holds his own for as long. Ours is set when a connection is opened.
func (v variables) lockWaits() reservation.Finding {
	return reservation.Judge("lock_wait", v.lockWait >= minLockWait && v.lockWait <= maxLockWait, reservation.Failure,
		fmt.Sprintf("innodb_lock_wait_timeout is %d s on our connections", v.lockWait),
		"it is set to 1 to 3 s when a connection is opened, and something between takes that away: a proxy has to keep session "+
			"variables, or set innodb_lock_wait_timeout = 2 on the server")
}

// session: what else is set when a connection is opened is there.
func (v variables) session() reservation.Finding {
	var wrong []string
	if v.zone != "+00:00" {
		wrong = append(wrong, "time_zone is "+v.zone)
	}
	if !strings.Contains(v.mode, "STRICT_ALL_TABLES") {
		wrong = append(wrong, "sql_mode is not strict ("+v.mode+")")
	}
	if v.charset != "utf8mb4" {
		wrong = append(wrong, "character_set_client is "+v.charset+", so that a caller's key may be read as a statement")
	}
	if !v.autocommit {
		wrong = append(wrong, "autocommit is off")
	}
	if v.idle > maxIdle {
		wrong = append(wrong, fmt.Sprintf("wait_timeout is %d s, so that a process which is stopped in a transaction holds up a raise of the fence that long", v.idle))
	}
	found := strings.Join(wrong, "; ")
	if len(wrong) == 0 {
		found = fmt.Sprintf("UTC, strict, autocommit, wait_timeout %d s", v.idle)
	}
	return reservation.Judge("session", len(wrong) == 0, reservation.Failure, found,
		"these are set when a connection is opened, and something between takes them away: a proxy has to keep session variables")
}

// isolationOf: transactions set their own; a lone read runs under the session's, and must not see what is not committed.
func (v variables) isolationOf() reservation.Finding {
	switch v.isolation {
	case "READ-COMMITTED", "REPEATABLE-READ":
		return reservation.Finding{Check: "isolation", Severity: reservation.Fine, Found: v.isolation + " outside of our transactions, which set their own"}
	case "SERIALIZABLE":
		return reservation.Finding{
			Check: "isolation", Severity: reservation.Warning, Found: v.isolation + " outside of our transactions, which set their own",
			Fix: "set transaction_isolation = READ-COMMITTED (or leave the default): under SERIALIZABLE other programs' reads lock our rows",
		}
	default:
		return reservation.Finding{
			Check: "isolation", Severity: reservation.Failure, Found: v.isolation + ": a lone read of ours sees what is not committed",
			Fix: "set transaction_isolation = READ-COMMITTED (or leave the default)",
		}
	}
}

func (v variables) packets() reservation.Finding {
	return reservation.Judge("max_allowed_packet", v.packet >= minPacket, reservation.Failure, sizeText(v.packet),
		"set max_allowed_packet to 16M at least (64M is the default): a large cart, and a batch of many, are one packet")
}

// sizeText gives bytes in the largest unit that does not hide them.
func sizeText(bytes int64) string {
	switch {
	case bytes >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
	case bytes%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", bytes>>10)
	default:
		return fmt.Sprintf("%.1f KiB", float64(bytes)/(1<<10))
	}
}

func (v variables) concurrency() reservation.Finding {
	return reservation.Judge("thread_concurrency", v.threads == 0, reservation.Warning, fmt.Sprintf("innodb_thread_concurrency is %d", v.threads),
		"set innodb_thread_concurrency = 0, unless there is a reason that somebody can name: a thread that waits to enter InnoDB keeps "+
			"the row locks that it has, and the hot bucket waits with it")
}

func (v variables) redo() reservation.Finding {
	means := map[int64]string{
		1: "every commit is on disk before it is answered",
		0: "a crash of mysqld or of the machine loses about a second of answered grants and claims",
		2: "a crash of the machine loses about a second of answered grants and claims",
	}[v.flush]
	return reservation.Judge("redo_flush", v.flush == 1, reservation.Warning, fmt.Sprintf("innodb_flush_log_at_trx_commit is %d: %s", v.flush, means),
		"set innodb_flush_log_at_trx_commit = 1: what is lost was promised to somebody; in cutover Redis still knows the grants, in complete nobody does")
}

func (v variables) binlog() reservation.Finding {
	if !v.logBin {
		return reservation.Finding{
			Check: "binlog_sync", Severity: reservation.Warning, Found: "log_bin is off: there is no replica, and no way back to a moment",
			Fix: "turn the binary log on (log_bin, the default), with sync_binlog = 1",
		}
	}
	means := "the binary log is on disk before a commit is answered"
	if v.syncBinlog != 1 {
		means = "after a crash of the machine the binary log lacks answered commits, and replicas and point-in-time recovery lack them too"
	}
	return reservation.Judge("binlog_sync", v.syncBinlog == 1, reservation.Warning, fmt.Sprintf("sync_binlog is %d: %s", v.syncBinlog, means),
		"set sync_binlog = 1: after a failover to a replica what it lacks was promised to somebody")
}

func (v variables) writable() reservation.Finding {
	var on []string
	for _, b := range []struct {
		name string
		on   bool
	}{{"read_only", v.readOnly}, {"super_read_only", v.superReadOnly}, {"innodb_read_only", v.innodbReadOnly}} {
		if b.on {
			on = append(on, b.name)
		}
	}
	if len(on) == 0 {
		return reservation.Finding{Check: "read_only", Severity: reservation.Fine, Found: "takes writes"}
	}
	return reservation.Finding{
		Check: "read_only", Severity: reservation.Failure, Found: strings.Join(on, " and ") + " is on: nothing can be claimed, and nothing reserved where MySQL decides",
		Fix: "does the pod's mysql name a replica? If this is the primary: SET GLOBAL super_read_only = OFF; SET GLOBAL read_only = OFF",
	}
}

func (v variables) statements() reservation.Finding {
	state := map[bool]string{true: "on", false: "off"}[v.schema]
	return reservation.Judge("performance_schema", v.schema, reservation.Warning, state,
		"set performance_schema = ON (the default) and restart: without it the server cannot tell who waits for whom, nor what a statement costs")
}

func (v variables) deadlock() reservation.Finding {
	state := map[bool]string{true: "on", false: "off"}[v.deadlocks]
	return reservation.Judge("deadlock_detect", v.deadlocks, reservation.Warning, "innodb_deadlock_detect is "+state,
		"set innodb_deadlock_detect = ON: without it each deadlock costs a whole lock wait in place of nothing")
}
