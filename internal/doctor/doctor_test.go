package doctor

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// These tests change the server's global variables, so they do not run at the same time.
func TestMain(m *testing.M) { devtest.Main(m, devtest.Needs{MySQL: true}) }

// ward is a migrated schema on a server.
type ward struct {
	t     *testing.T
	dsn   string
	admin *sql.DB
}

func newWard(t *testing.T, m *devstack.MySQL) *ward {
	t.Helper()
	w := &ward{t: t, dsn: devtest.SchemaOn(t, m)}
	if err := mysqlstore.Migrate(t.Context(), w.dsn); err != nil {
		t.Fatal(err)
	}
	w.admin = w.open(w.dsn)
	return w
}

func (w *ward) open(dsn string) *sql.DB {
	w.t.Helper()
	db, err := mysqlstore.OpenDB(dsn, mysqlstore.Options{MaxOpenConns: 2})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = db.Close() })
	return db
}

func (w *ward) run(statements ...string) {
	w.t.Helper()
	for _, q := range statements {
		if _, err := w.admin.ExecContext(context.WithoutCancel(w.t.Context()), "/* conn_tag:test */ "+q); err != nil {
			w.t.Fatalf("%s: %v", q, err)
		}
	}
}

// examine asks over new connections: those that are open keep what they were opened with.
func (w *ward) examine(db *sql.DB, o Options) map[string]reservation.Finding {
	w.t.Helper()
	found, err := Examine(w.t.Context(), db, o)
	if err != nil {
		w.t.Fatal(err)
	}
	m := map[string]reservation.Finding{}
	for _, f := range found {
		if (f.Severity == reservation.Fine) != (f.Fix == "") || f.Found == "" {
			w.t.Errorf("%s is %s, found %q, fix %q: what is not well is mended, and nothing else", f.Check, f.Severity, f.Found, f.Fix)
		}
		m[f.Check] = f
	}
	return m
}

// wantOnly checks that these are all the checks that are not well, as "check=result" with words of what was found.
func (w *ward) wantOnly(what string, got map[string]reservation.Finding, want ...string) {
	w.t.Helper()
	left := map[string]bool{}
	for name, f := range got {
		if f.Severity != reservation.Fine {
			left[name] = true
		}
	}
	for _, text := range want {
		head, words, _ := strings.Cut(text, ":")
		name, result, _ := strings.Cut(head, "=")
		if f := got[name]; f.Severity.String() != result || !strings.Contains(f.Found, words) {
			w.t.Errorf("%s: %s is %s, found %q; want %s and %q", what, name, f.Severity, f.Found, result, words)
		}
		delete(left, name)
	}
	for name := range left {
		w.t.Errorf("%s: %s is %s too: %s", what, name, got[name].Severity, got[name].Found)
	}
}

// asRoot is what is said of the test server's administrator.
const asRoot = "privileges_global=warning:SUPER"

// TestEachWrongVariableIsExactlyOneFinding: set wrong, found, set back, well.
func TestEachWrongVariableIsExactlyOneFinding(t *testing.T) {
	w := newWard(t, devtest.MySQL(t))
	w.wantOnly("as it should be", w.examine(w.open(w.dsn), Options{}), asRoot)
	for _, c := range []struct{ variable, wrong, right, want string }{
		{"innodb_flush_log_at_trx_commit", "2", "1", "redo_flush=warning:a crash of the machine loses"},
		{"innodb_flush_log_at_trx_commit", "0", "1", "redo_flush=warning:a crash of mysqld"},
		{"sync_binlog", "100", "1", "binlog_sync=warning:sync_binlog is 100"},
		{"innodb_thread_concurrency", "8", "0", "thread_concurrency=warning:is 8"},
		{"max_allowed_packet", "1024", "67108864", "max_allowed_packet=failure:1 KiB"},
		{"max_allowed_packet", "4194304", "67108864", "max_allowed_packet=failure:4.0 MiB"},
		{"transaction_isolation", "'READ-UNCOMMITTED'", "'REPEATABLE-READ'", "isolation=failure:not committed"},
		{"transaction_isolation", "'SERIALIZABLE'", "'REPEATABLE-READ'", "isolation=warning:SERIALIZABLE"},
		{"innodb_deadlock_detect", "OFF", "ON", "deadlock_detect=warning:off"},
		{"read_only", "ON", "OFF", "read_only=failure:read_only is on"},
		{"super_read_only", "ON", "OFF", "read_only=failure:read_only and super_read_only"},
		{"innodb_monitor_disable", "'trx_rseg_history_len'", "", "purge_lag=warning:is off"},
	} {
		w.run("SET GLOBAL " + c.variable + " = " + c.wrong)
		got := w.examine(w.open(w.dsn), Options{})
		switch {
		case c.right != "":
			w.run("SET GLOBAL " + c.variable + " = " + c.right)
		default:
			w.run("SET GLOBAL innodb_monitor_enable = 'trx_rseg_history_len'")
		}
		w.run("SET GLOBAL read_only = OFF")
		w.wantOnly(c.variable+" = "+c.wrong, got, asRoot, c.want)
	}
	w.wantOnly("set back", w.examine(w.open(w.dsn), Options{}), asRoot)
}

// TestConnectionsThatAreNotOurs: settings that a proxy takes away are missed.
func TestConnectionsThatAreNotOurs(t *testing.T) {
	w := newWard(t, devtest.MySQL(t))
	ours := map[string]string{
		"innodb_lock_wait_timeout": "2", "wait_timeout": "30", "time_zone": "'+00:00'", "autocommit": "1", "sql_mode": "'STRICT_ALL_TABLES'",
	}
	for param, want := range map[string]string{
		"innodb_lock_wait_timeout": "lock_wait=failure:is 50 s", "wait_timeout": "session=failure:wait_timeout is 28800",
		"time_zone": "session=failure:time_zone is SYSTEM", "sql_mode": "session=failure:not strict",
	} {
		c, err := mysql.ParseDSN(w.dsn)
		if err != nil {
			t.Fatal(err)
		}
		c.Params = map[string]string{}
		for k, v := range ours {
			if k != param {
				c.Params[k] = v
			}
		}
		connector, err := mysql.NewConnector(c)
		if err != nil {
			t.Fatal(err)
		}
		db := sql.OpenDB(connector)
		w.wantOnly("without "+param, w.examine(db, Options{}), asRoot, want)
		_ = db.Close()
	}
}

// TestWhatHoldsUpThePurge: a read view that stays open is named, and what it holds up is counted.
func TestWhatHoldsUpThePurge(t *testing.T) {
	w := newWard(t, devtest.MySQL(t))
	conn, err := w.open(w.dsn).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var thread int64
	if err := conn.QueryRowContext(t.Context(), "/* conn_tag:test */ SELECT CONNECTION_ID()").Scan(&thread); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.ExecContext(t.Context(), "/* conn_tag:test */ START TRANSACTION WITH CONSISTENT SNAPSHOT"); err != nil {
		t.Fatal(err)
	}
	w.run("INSERT INTO inventory_ledger VALUES (1, 1, 1, 0, 0, 1)")
	for range 30 {
		w.run("UPDATE inventory_ledger SET version = version + 1")
	}
	devtest.Until(t, "the read view is two seconds old", func() bool {
		f := w.examine(w.admin, Options{MaxReadView: time.Second})["read_views"]
		return f.Severity == reservation.Warning && strings.Contains(f.Found, fmt.Sprintf("connection %d", thread)) && strings.Contains(f.Fix, fmt.Sprintf("KILL %d", thread))
	})
	w.wantOnly("a read view and what it holds up", w.examine(w.admin, Options{MaxReadView: time.Second, MaxHistory: 10}),
		asRoot, "read_views=warning:", "purge_lag=warning:history list length")
	w.wantOnly("by default that is nothing", w.examine(w.admin, Options{}), asRoot)
	if _, err := conn.ExecContext(t.Context(), "/* conn_tag:test */ ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}

// TestWhatIsOffFromTheStart is of variables that a running server does not change.
func TestWhatIsOffFromTheStart(t *testing.T) {
	stack := devtest.Private(t, devstack.Options{MySQL: true, MySQLArgs: []string{"--performance-schema=OFF", "--skip-log-bin"}})
	w := newWard(t, stack.MySQL)
	w.wantOnly("off from the start", w.examine(w.admin, Options{}), asRoot, "performance_schema=warning:off", "binlog_sync=warning:log_bin is off")
}

// TestAccounts: what is asked for is enough to do the work, less is named, and more is not asked for.
func TestAccounts(t *testing.T) {
	w := newWard(t, devtest.MySQL(t))
	schema := w.name()
	all := "SELECT, INSERT, UPDATE, DELETE"
	noConns := "privileges_conns=warning:twinhold conns --server cannot be used"
	blind := []string{"purge_lag=warning:PROCESS", "read_views=warning:PROCESS", noConns}
	cannotMigrate := "privileges_ddl=warning:it lacks CREATE, ALTER, INDEX, DROP"
	process := "GRANT PROCESS ON *.* TO {user}"
	for name, c := range map[string]struct {
		grants []string
		want   []string
	}{
		"serve": {[]string{"GRANT " + all + " ON {schema}.* TO {user}"}, append(blind, cannotMigrate)},
		"watch": {[]string{"GRANT " + all + " ON {schema}.* TO {user}", process}, []string{cannotMigrate, noConns}},
		"migrate": {
			[]string{"GRANT " + all + ", CREATE, ALTER, INDEX, DROP ON {schema}.* TO {user}", process}, []string{noConns},
		},
		"pattern": {[]string{"GRANT " + all + ", CREATE, ALTER, INDEX, DROP ON `t\\_%`.* TO {user}", process}, []string{noConns}},
		"reader": {
			[]string{"GRANT SELECT ON {schema}.* TO {user}"},
			append(blind, cannotMigrate, "privileges_serve=failure:UPDATE on inventory_ledger"),
		},
		"keeper": {
			[]string{"GRANT SELECT, INSERT, UPDATE ON {schema}.* TO {user}"},
			append(blind, cannotMigrate, "privileges_serve=failure:lacks SELECT, DELETE on reservation_units; DELETE on reservations; "+
				"SELECT, DELETE on reserved_quantities; SELECT, DELETE on reservation_marks"),
		},
		"role": {[]string{
			"DROP ROLE IF EXISTS r_doctor", "CREATE ROLE r_doctor", "GRANT " + all + " ON {schema}.* TO r_doctor",
			"GRANT r_doctor TO {user}", "SET DEFAULT ROLE ALL TO {user}",
		}, blind},
		"king": {[]string{"GRANT ALL PRIVILEGES ON *.* TO {user} WITH GRANT OPTION"}, []string{"privileges_global=warning:GRANT OPTION"}},
	} {
		user := "u_" + name
		w.run("DROP USER IF EXISTS "+user, "CREATE USER "+user)
		for _, g := range c.grants {
			w.run(strings.NewReplacer("{schema}", "`"+schema+"`", "{user}", user).Replace(g))
		}
		w.wantOnly(name, w.examine(w.open(w.as(user)), Options{}), c.want...)
	}
	w.serves(w.as("u_serve"))
	w.run(w.examine(w.open(w.as("u_watch")), Options{})["privileges_conns"].Fix) // the statement as it is told
	w.wantOnly("conns", w.examine(w.open(w.as("u_watch")), Options{}), cannotMigrate)
	if err := mysqlstore.Migrate(t.Context(), strings.Replace(devtest.Schema(t), "root@", "u_pattern@", 1)); err != nil {
		t.Errorf("an account with the rights that migrate needs: %v", err)
	}
}

func (w *ward) name() string {
	c, err := mysql.ParseDSN(w.dsn)
	if err != nil {
		w.t.Fatal(err)
	}
	return c.DBName
}

func (w *ward) as(user string) string { return strings.Replace(w.dsn, "root@", user+"@", 1) }

// serves checks that an account can do a pod's work.
func (w *ward) serves(dsn string) {
	w.t.Helper()
	ctx := w.t.Context()
	s, err := mysqlstore.Open(ctx, mysqlstore.Options{DSN: dsn, Pod: "pod-1"})
	if err != nil {
		w.t.Fatal(err)
	}
	defer s.Close()
	st := reservation.Stamp{Epoch: 1, Stage: reservation.Cutover}
	if _, err := s.InitFence(ctx, st); err != nil {
		w.t.Fatal(err)
	}
	b := reservation.Bucket{Shop: 1, Item: 1, Group: 1}
	if _, _, err := s.Stock(ctx, st, []reservation.Stocking{{Bucket: b, Quantity: 5}}); err != nil {
		w.t.Fatal(err)
	}
	req, err := reservation.NewRequest(1, "k", []reservation.Line{{Item: 1, Group: 1, Quantity: 2}}, time.Minute, reservation.Limits{DefaultTTL: time.Minute})
	if err != nil {
		w.t.Fatal(err)
	}
	id, err := reservation.NewID()
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := s.Reserve(ctx, st, id, req); err != nil {
		w.t.Error(err)
	}
	if err := s.Mark(ctx, st, id); err != nil {
		w.t.Error(err)
	}
	if _, err := s.Claim(ctx, st, 1, id); err != nil {
		w.t.Error(err)
	}
	if _, err := s.Sweep(ctx, st, 10); err != nil {
		w.t.Error(err)
	}
}

// TestEveryTableIsAskedAbout: a table that a migration adds is one whose rights are tried.
func TestEveryTableIsAskedAbout(t *testing.T) {
	w := newWard(t, devtest.MySQL(t))
	rows, err := w.admin.QueryContext(t.Context(), "/* conn_tag:test */ SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name <> 'goose_db_version'")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var table string
		if err := rows.Scan(&table); err != nil {
			t.Fatal(err)
		}
		asked := false
		for _, m := range serving() {
			asked = asked || m.table == table
		}
		if !asked {
			t.Errorf("nothing asks whether the account may write %s", table)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
}

func TestAServerThatDoesNotAnswer(t *testing.T) {
	w := &ward{t: t}
	if _, err := Examine(t.Context(), w.open("root@tcp(127.0.0.1:1)/none"), Options{}); err == nil {
		t.Error("no error")
	}
}
