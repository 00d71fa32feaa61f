package lab_test

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/internal/lab"
	"github.com/twinhold/twinhold/mysqlstore"
)

func TestMain(m *testing.M) { devtest.Main(m, devtest.Needs{MySQL: true, Redis: true}) }

func newLab(t *testing.T, o lab.Options) *lab.Lab {
	t.Helper()
	if o.DSN == "" {
		o.DSN = devtest.MySQL(t).DSN("")
	}
	o.Redis = devtest.RedisURL(t)
	l, err := lab.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// The tests of this package run one after the other, since each looks whether anything is left behind.

// Every count of every step, as a MySQL 9.7 and a Redis 7.0 show them. They are written out here once more, so that
// neither a changed expectation in the steps nor a step that forgot to look passes unseen.
func TestEveryStepShowsWhatTheDesignSays(t *testing.T) {
	want := []map[string]int64{
		{"waits": 1, "locks_of_a": 1, "available": 8},
		{"waits": 0, "locks": 2, "unit_of_a": 1, "unit_of_b": 2},
		{"units_composite_key": 5, "units_auto_increment": 5, "locks_composite_key": 5, "locks_auto_increment": 10, "of_those_on_secondary_index": 5},
		{"repeatable_read_locks": 1, "repeatable_read_x_on_supremum": 1, "read_committed_locks": 0},
		{
			"repeatable_read_waits": 1, "repeatable_read_refill_errno": 1205, "read_committed_waits": 0, "read_committed_refill_errno": 0,
			"read_committed_refilled": 5, "two_refillers_deadlocks": 1, "two_refillers_done": 1,
		},
		{
			"clauses_on_each_errno": 1064, "clauses_at_the_end_rows": 3, "clauses_at_the_end_locks": 0, "units_taken_twice": 3,
			"ordered_locks": 20, "in_parentheses_rows": 6, "in_parentheses_locks": 6,
		},
		{"check_then_act_sold": 7, "check_then_act_left": 1, "guarded_sold": 3, "guarded_left": 2},
		{
			"expired_available": 10, "expired_on_hand": 6, "oversell": 4, "retried_on_hand": 2, "undersell": 4,
			"reversed_available": 6, "reversed_on_hand": 10, "reversed_undersell": 4, "second_entry_errno": 1062, "with_entry_on_hand": 6,
		},
	}
	seen := 0
	res, err := newLab(t, lab.Options{Each: func(lab.Step) error { seen++; return nil }}).Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Lab) != len(want) || seen != len(want) || len(want) != lab.Steps || len(res.Failed()) != 0 {
		t.Fatalf("%d steps, %d told, failed %v", len(res.Lab), seen, res.Failed())
	}
	for i, s := range res.Lab {
		if s.Number != i+1 || !s.OK || !maps.Equal(s.Facts, want[i]) {
			t.Errorf("step %d, ok %t, problems %v\n got %v\nwant %v", s.Number, s.OK, s.Problems, s.Facts, want[i])
		}
		if s.Means == "" || s.Name == "" || len(s.Shown) < 4 {
			t.Errorf("step %d is not told: %+v", s.Number, s)
		}
	}
	told := strings.Join(res.Lab[0].Shown, "\n") + strings.Join(res.Lab[4].Shown, "\n")
	for _, w := range []string{"B waits for A: X,REC_NOT_GAP on PRIMARY (1, 1, 1)", "INNODB STATUS: ------- TRX HAS BEEN WAITING", "supremum pseudo-record", "WE ROLL BACK TRANSACTION", "Error 1205", "Error 1213"} {
		if !strings.Contains(told, w) {
			t.Errorf("%q is not told in\n%s", w, told)
		}
	}
	nothingIsLeft(t)
}

func nothingIsLeft(t *testing.T) {
	t.Helper()
	db := open(t, devtest.Schema(t))
	var schemas int
	if err := db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM information_schema.SCHEMATA WHERE SCHEMA_NAME LIKE 'twinhold\\_lab\\_%'").Scan(&schemas); err != nil {
		t.Fatal(err)
	}
	o, err := redis.ParseURL(devtest.RedisURL(t))
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(o)
	defer c.Close()
	keys, err := c.Keys(t.Context(), "{lab-*").Result()
	if err != nil || schemas != 0 || len(keys) != 0 {
		t.Errorf("left behind: %d schemas, keys %v, %v", schemas, keys, err)
	}
}

func open(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := mysqlstore.OpenDB(dsn, mysqlstore.Options{MaxOpenConns: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func TestOneStepAlone(t *testing.T) {
	res, err := newLab(t, lab.Options{Only: []int{4}}).Run(t.Context())
	if err != nil || len(res.Lab) != 1 || res.Lab[0].Number != 4 || !res.Lab[0].OK {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestAServerThatDoesNotTellOfItsLocks(t *testing.T) {
	stack := devtest.Private(t, devstack.Options{MySQL: true, MySQLArgs: []string{"--performance-schema=OFF"}})
	if _, err := newLab(t, lab.Options{DSN: stack.MySQL.DSN("")}).Run(t.Context()); !errors.Is(err, lab.ErrBlind) {
		t.Errorf("got %v", err)
	}
}

func TestAnInterruptedRunLeavesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	res, err := newLab(t, lab.Options{Each: func(s lab.Step) error {
		if s.Number == 2 {
			cancel()
		}
		return nil
	}}).Run(ctx)
	if !errors.Is(err, context.Canceled) || len(res.Lab) != 2 {
		t.Errorf("%d steps, %v", len(res.Lab), err)
	}
	nothingIsLeft(t)
}

// A user of a pod's own schema may not make another: the lab says so before it has done anything.
func TestAUserWithoutPrivileges(t *testing.T) {
	db := open(t, devtest.Schema(t))
	for _, q := range []string{"DROP USER IF EXISTS lab_nobody", "CREATE USER lab_nobody"} {
		if _, err := db.ExecContext(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	dsn := strings.Replace(devtest.MySQL(t).DSN(""), "root@", "lab_nobody@", 1)
	_, err := newLab(t, lab.Options{DSN: dsn}).Run(t.Context())
	var e *mysql.MySQLError
	if !errors.As(err, &e) || e.Number != 1044 {
		t.Errorf("got %v", err)
	}
	nothingIsLeft(t)
}

// Without PROCESS the steps stand: INNODB STATUS only illustrates them.
func TestAUserWithoutProcess(t *testing.T) {
	db := open(t, devtest.Schema(t))
	for _, q := range []string{
		"DROP USER IF EXISTS lab_some", "CREATE USER lab_some",
		"GRANT ALL ON `twinhold\\_lab\\_%`.* TO lab_some", "GRANT SELECT ON performance_schema.* TO lab_some",
	} {
		if _, err := db.ExecContext(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	dsn := strings.Replace(devtest.MySQL(t).DSN(""), "root@", "lab_some@", 1)
	res, err := newLab(t, lab.Options{DSN: dsn, Only: []int{1}}).Run(t.Context())
	if err != nil || len(res.Failed()) != 0 || !strings.Contains(strings.Join(res.Lab[0].Shown, "\n"), "lacks the PROCESS privilege") {
		t.Errorf("%+v, %v", res, err)
	}
}

func TestOptionsThatMakeNoSense(t *testing.T) {
	for _, c := range []struct {
		o    lab.Options
		want string
	}{
		{lab.Options{}, "DSN is empty"},
		{lab.Options{DSN: "x"}, "the Redis URL is empty"},
		{lab.Options{DSN: "x", Redis: "y", Only: []int{9}}, "there is no step 9: use 1 to 8"},
	} {
		if _, err := lab.New(c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
	}
}
