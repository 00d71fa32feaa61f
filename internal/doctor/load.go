package doctor

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/twinhold/twinhold/internal/mysqlerr"
	"github.com/twinhold/twinhold/reservation"
)

func denied(err error) bool { return mysqlerr.Of(err) == mysqlerr.Denied }

// unseen is a check that the account lacks PROCESS for.
func unseen(check string) reservation.Finding {
	return reservation.Finding{
		Check: check, Severity: reservation.Warning, Found: "cannot be seen: the account lacks PROCESS",
		Fix: "GRANT PROCESS ON *.* TO the account (it may then see what others run, and nothing more), or watch it elsewhere",
	}
}

// purgeLag is how much deleted and overwritten data waits to be removed.
func purgeLag(ctx context.Context, db *sql.DB, o Options) (reservation.Finding, error) {
	const check = "purge_lag"
	var length int64
	var status string
	err := db.QueryRowContext(ctx, qHistory).Scan(&length, &status)
	switch {
	case denied(err):
		return unseen(check), nil
	case errors.Is(err, sql.ErrNoRows) || err == nil && status != "enabled":
		return reservation.Finding{
			Check: check, Severity: reservation.Warning, Found: "the counter trx_rseg_history_len is off",
			Fix: "SET GLOBAL innodb_monitor_enable = 'trx_rseg_history_len'",
		}, nil
	case err != nil:
		return reservation.Finding{}, fmt.Errorf("doctor: read the purge's lag: %w", err)
	}
	return reservation.Judge(check, length <= o.MaxHistory, reservation.Warning, fmt.Sprintf("history list length %d", length),
		"is a read view old (see read_views)? Else the purge cannot keep up: more innodb_purge_threads, or a faster disk"), nil
}

// readViews looks for the oldest transaction of others: what it may still see cannot be purged.
func readViews(ctx context.Context, db *sql.DB, o Options) (reservation.Finding, error) {
	const check = "read_views"
	var thread, seconds int64
	var isolation string
	err := db.QueryRowContext(ctx, qReadViews).Scan(&thread, &seconds, &isolation)
	switch {
	case denied(err):
		return unseen(check), nil
	case errors.Is(err, sql.ErrNoRows):
		return reservation.Finding{Check: check, Severity: reservation.Fine, Found: "no other transaction is open"}, nil
	case err != nil:
		return reservation.Finding{}, fmt.Errorf("doctor: look for old transactions: %w", err)
	}
	age := time.Duration(seconds) * time.Second
	return reservation.Judge(check, age <= o.MaxReadView, reservation.Warning,
		fmt.Sprintf("the oldest transaction is %v old (connection %d, %s)", age, thread, isolation),
		fmt.Sprintf("is it a backup, or somebody's forgotten session? SHOW PROCESSLIST names it, KILL %d ends it; backups belong on a replica. "+
			"Locks that it holds make callers wait, old rows that it may see cannot be purged", thread)), nil
}
