package mysqlstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/twinhold/twinhold/mysqlstore"
)

// TestVariablesOfTheDSN: what a DSN sets as a session variable is the store's own, in whatever letters, or it is refused.
func TestVariablesOfTheDSN(t *testing.T) {
	t.Parallel()
	b := open(t, complete)
	for _, variable := range []string{"character_set_connection", "completion_type", "max_execution_time", "transaction_read_only", "Transaction_Isolation"} {
		db, err := mysqlstore.OpenDB(b.dsn+"?"+variable+"=1", mysqlstore.Options{})
		if err == nil {
			_ = db.Close()
		}
		if err == nil || !strings.Contains(err.Error(), variable) || !strings.Contains(err.Error(), "take it out") {
			t.Errorf("%s: %v", variable, err)
		}
	}
	odd := b.dsn + "?Character_Set_Client=gbk&Sql_Mode=%27NO_BACKSLASH_ESCAPES%27&Autocommit=0&Time_Zone=%27%2B09:00%27&Innodb_Lock_Wait_Timeout=50"
	s, err := mysqlstore.Open(t.Context(), mysqlstore.Options{DSN: odd, Pod: b.opts.Pod, LockWait: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for range 8 { // the driver sends them in an order of its own
		conn, err := s.DB().Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		var charset, collation, mode, zone string
		var commit, wait int
		err = conn.QueryRowContext(t.Context(), "SELECT @@character_set_client, @@collation_connection, @@sql_mode, @@time_zone, @@autocommit, @@innodb_lock_wait_timeout").
			Scan(&charset, &collation, &mode, &zone, &commit, &wait)
		if err != nil || charset != "utf8mb4" || collation != "utf8mb4_bin" || !strings.HasPrefix(mode, "STRICT_ALL_TABLES") ||
			strings.Contains(mode, "BACKSLASH") || zone != "+00:00" || commit != 1 || wait != 1 {
			t.Errorf("%s %s %s %s %d %d, %v", charset, collation, mode, zone, commit, wait, err)
		}
	}
	// The bytes that close a quote where they are read as GBK.
	b.stock(10)
	key := "\xe4\xb8\xad',null);insert into pod_audit select 0;#"
	res, err := s.Reserve(t.Context(), b.st, newID(t), request(t, key, time.Minute, line(1, 1)))
	if err != nil || res.Record.Key != key {
		t.Errorf("%+v, %v", res, err)
	}
	if again, err := s.Reserve(t.Context(), b.st, newID(t), request(t, key, time.Minute, line(1, 1))); err != nil || !again.Replayed {
		t.Errorf("%+v, %v", again, err)
	}
}
