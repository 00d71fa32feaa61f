package conntag_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/internal/conntag"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
)

func (r *rig) failed(tag, class string) float64 {
	return metric(r.T, r.reg, conntag.MetricErrors, map[string]string{"tag": tag, "class": class})
}

func (r *rig) begin(query string, id int) *sql.Tx {
	r.Helper()
	tx, err := r.db.BeginTx(r.Context(), nil)
	if err != nil {
		r.Fatal(err)
	}
	r.exec(tx, query, id)
	return tx
}

func wantNumber(t *testing.T, err error, number uint16) {
	t.Helper()
	var e *mysql.MySQLError
	if !errors.As(err, &e) || e.Number != number {
		t.Errorf("got %v, want error %d", err, number)
	}
}

const qLockRow = "/* conn_tag:locker */ UPDATE t SET n = n + 1 WHERE id = ?"

func TestErrorsByClass(t *testing.T) {
	t.Parallel()
	r := newRig(t, real)
	r.exec(r.db, "/* conn_tag:setup */ CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL DEFAULT 0)")
	r.exec(r.db, "/* conn_tag:setup */ INSERT INTO t (id) VALUES (1), (2)")
	first := r.begin(qLockRow, 1)
	_, err := r.db.ExecContext(t.Context(), "/* conn_tag:waiter */ UPDATE t SET n = n + 1 WHERE id = 1")
	wantNumber(t, err, 1205)
	// A locking read has told its columns before it fails: the error comes in place of the first row.
	var n int
	wantNumber(t, r.db.QueryRowContext(t.Context(), "/* conn_tag:reader */ SELECT n FROM t WHERE id = 1 FOR UPDATE").Scan(&n), 1205)

	second := r.begin(qLockRow, 2)
	crossed := make(chan error, 1)
	go func() {
		_, err := first.ExecContext(t.Context(), "/* conn_tag:crossing */ UPDATE t SET n = n + 1 WHERE id = 2")
		crossed <- err
	}()
	devtest.Until(t, "the first waits", func() bool {
		for _, u := range r.meter.Usage() {
			if u.Tag == "crossing" && u.InUse == 1 {
				return waits(t, r.db)
			}
		}
		return false
	})
	_, errSecond := second.ExecContext(t.Context(), "/* conn_tag:crossing */ UPDATE t SET n = n + 1 WHERE id = 1")
	wantNumber(t, errors.Join(errSecond, <-crossed), 1213)
	_, _ = first.Rollback(), second.Rollback()

	_, err = r.db.ExecContext(t.Context(), "/* conn_tag:wrong */ UPDATE nowhere SET n = 1")
	wantNumber(t, err, 1146)
	ctx, cancel := context.WithCancel(t.Context())
	c := r.conn()
	cancel()
	if _, err := c.ExecContext(ctx, "/* conn_tag:gone */ DO 1"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	r.close(c)
	for _, w := range [][2]string{
		{"waiter", conntag.ClassLockWait},
		{"reader", conntag.ClassLockWait},
		{"crossing", conntag.ClassDeadlock},
		{"wrong", conntag.ClassOther},
	} {
		if got := r.failed(w[0], w[1]); got != 1 {
			t.Errorf("%s, %s: %v", w[0], w[1], got)
		}
	}
	if got := r.failed("locker", conntag.ClassLockWait); got != 0 {
		t.Errorf("the one who held the lock: %v", got)
	}
}

// A packet of several statements is one, under the first one's tag; a later one's error is counted all the same.
func TestAPacketThatFailsInItsMiddle(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	meter, err := conntag.New(conntag.Options{Registerer: reg})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := mysql.ParseDSN(devtest.Schema(t) + "?multiStatements=true")
	if err != nil {
		t.Fatal(err)
	}
	c, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(meter.Wrap(c))
	defer db.Close()
	rows, err := db.QueryContext(t.Context(), "/* conn_tag:first */ SELECT 1; /* conn_tag:second */ SELECT * FROM nowhere")
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() || rows.NextResultSet() {
	}
	wantNumber(t, rows.Err(), 1146)
	_ = rows.Close()
	if got := metric(t, reg, conntag.MetricErrors, map[string]string{"tag": "first", "class": conntag.ClassOther}); got != 1 {
		t.Errorf("errors of the packet: %v", got)
	}
	if u := meter.Usage(); len(u) != 1 || u[0].Tag != "first" || u[0].Statements != 1 || u[0].InUse != 0 {
		t.Errorf("%+v", u)
	}
}

func waits(t *testing.T, db *sql.DB) bool {
	t.Helper()
	var n int
	if err := db.QueryRowContext(t.Context(), `SELECT /* conn_tag:look */ COUNT(*) FROM performance_schema.data_locks
WHERE OBJECT_SCHEMA = DATABASE() AND LOCK_STATUS = 'WAITING'`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n > 0
}

// A caller that goes away in the middle of a statement is a class of its own, and the connection's time ends there.
func TestACallerThatGoesAway(t *testing.T) {
	t.Parallel()
	r := newRig(t, real)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := r.db.ExecContext(ctx, "/* conn_tag:sleeper */ DO SLEEP(5)")
		ended <- err
	}()
	devtest.Until(t, "it sleeps", func() bool {
		u := r.meter.Usage()
		return len(u) == 1 && u[0].InUse == 1
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if got := r.failed("sleeper", conntag.ClassCancelled); got != 1 {
		t.Errorf("cancelled: %v", got)
	}
	if u := r.meter.Usage(); u[0].InUse != 0 || u[0].Held <= 0 {
		t.Errorf("%+v", u)
	}
}
