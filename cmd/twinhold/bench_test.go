package main

import (
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/internal/bench"
	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/mysqlstore"
)

// Without a configuration it starts servers of its own; the callers run in processes of this very binary.
func TestBenchJSON(t *testing.T) {
	t.Setenv(asTwinhold, "1")
	r := runCLI(t, "bench", "pool", "--format", "json", "--callers", "4", "--processes", "2", "--seconds", "0.3", "--runs", "2",
		"--schemes", "single_row,redis")
	if r.code != exitDone {
		t.Fatalf("exit %d: %s", r.code, r.err)
	}
	var got struct {
		Bench, Base string
		Rows        []map[string]any
	}
	if err := json.Unmarshal([]byte(r.out), &got); err != nil {
		t.Fatalf("%v: %s", err, r.out)
	}
	if got.Bench != "pool" || got.Base != "single_row" || len(got.Rows) != 2 || got.Rows[0]["scheme"] != "single_row" || got.Rows[1]["scheme"] != "redis" {
		t.Fatalf("%s", r.out)
	}
	for _, row := range got.Rows {
		for _, key := range []string{"callers", "ops_s", "ratio", "p50_ms", "p99_ms", "server_us_op", "client_us_op"} {
			if v, ok := row[key].(float64); !ok || v <= 0 {
				t.Errorf("%s is %v in %v", key, row[key], row)
			}
		}
		if row["processes"] != 2.0 || row["callers"] != 4.0 || row["exact"] != true {
			t.Errorf("%v", row)
		}
	}
	if got.Rows[0]["ratio"] != 1.0 {
		t.Errorf("the base's ratio is %v", got.Rows[0]["ratio"])
	}
}

// On a pod's own servers, the pod's tables and keys stay as they are, and nothing is left.
func TestBenchOnAPodsServers(t *testing.T) {
	c, stack := newClient(t)
	before := serverState(t, stack)
	r := runCLI(t, "bench", "soldout", "--callers", "4", "--seconds", "0.2", "--runs", "1", "--config", c.config, "--pod", "pod-2")
	if r.code != exitDone {
		t.Fatalf("exit %d: %s", r.code, r.err)
	}
	table := strings.Split(r.out, "\n")
	if head := slices.IndexFunc(table, func(l string) bool { return strings.HasPrefix(strings.TrimSpace(l), "ratio") }); head < 0 ||
		!strings.HasPrefix(strings.TrimSpace(table[head+1]), "1.00  stored ") {
		t.Errorf("ratios are not first:\n%s", r.out)
	}
	if after := serverState(t, stack); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	c.fails(exitFailed, `no pod "pod-9"`, "bench", "pool", "--pod", "pod-9")
}

// serverState is every table's name, and every key.
func serverState(t *testing.T, stack *devstack.Stack) string {
	t.Helper()
	db, err := mysqlstore.OpenDB(stack.MySQL.DSN("mysql"), mysqlstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var state string
	err = db.QueryRowContext(t.Context(), `/* conn_tag:test */ SELECT GROUP_CONCAT(CONCAT(table_schema, '.', table_name) ORDER BY 1 SEPARATOR '\n')
FROM information_schema.tables WHERE table_schema LIKE 'twinhold%'`).Scan(&state)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		t.Fatal(err)
	}
	o, err := redis.ParseURL(stack.Redis.URL(0))
	if err != nil {
		t.Fatal(err)
	}
	r := redis.NewClient(o)
	defer r.Close()
	keys, err := r.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(keys)
	return state + "\n" + strings.Join(keys, "\n")
}

func TestBenchRefusesMistakes(t *testing.T) {
	for _, tc := range []struct {
		want string
		args []string
	}{
		{`unknown command "speed"`, []string{"speed"}},
		{"callers 0", []string{"pool", "--callers", "0"}},
		{"callers -3", []string{"pool", "--callers", "-3"}},
		{"callers 0", []string{"pool", "--callers", "8,0"}},
		{`"x"`, []string{"pool", "--callers", "8,x"}},
		{`no part "rows"`, []string{"cost", "--only", "rows"}},
		{"unknown flag: --schemes", []string{"cost", "--schemes", "stock_10"}},
		{"seconds 0", []string{"claim", "--seconds", "0"}},
		{"seconds NaN", []string{"claim", "--seconds", "NaN"}},
		{"runs 0", []string{"claim", "--runs", "0"}},
		{"processes 0", []string{"pool", "--processes", "0"}},
		{"buckets 0", []string{"pool", "--buckets", "0"}},
		{`"5" for "--rtt"`, []string{"pool", "--rtt", "5"}},
		{"rtt 5s is out of range", []string{"pool", "--rtt", "5s"}},
		{"retries 2 is out of range", []string{"soldout", "--retries", "2"}},
		{`no scheme "warp"`, []string{"pool", "--schemes", "warp"}},
		{"unknown flag: --rate", []string{"neighbours", "--rate", "5"}},
		{"takes no argument", []string{"pool", "now"}},
		{"no-such.yaml", []string{"pool", "--config", "no-such.yaml"}},
	} {
		r := runCLI(t, append([]string{"bench"}, tc.args...)...)
		if r.code != exitFailed || !strings.Contains(r.err, tc.want) || !strings.Contains(r.err, "\nhint: ") || r.out != "" {
			t.Errorf("%v: exit %d, stdout %q, stderr %q (want %q and a hint)", tc.args, r.code, r.out, r.err, tc.want)
		}
	}
}

func TestBenchErrorsHaveACode(t *testing.T) {
	for _, tc := range []struct {
		err  error
		code int
		hint string
	}{
		{&bench.InexactError{Scheme: "pool", What: "a unit is lost"}, exitFailed, "do not count"},
		{&bench.NoSchemaError{Schema: "s", Err: &mysql.MySQLError{Number: 1044, Message: "Access denied"}}, exitRefused, "GRANT ALL ON `twinhold\\_bench\\_%`.*"},
		{&bench.NoSchemaError{Schema: "s", Err: &mysql.MySQLError{Number: 1006, Message: "errno: 28 - No space left on device"}}, exitFailed, "disk space"},
		{&bench.NoSchemaError{Schema: "s", Err: &mysql.MySQLError{Number: 1064, Message: "no SQL"}}, exitFailed, "use --devstack"},
		{&mysql.MySQLError{Number: 1114, Message: "The table 'x' is full"}, exitFailed, "disk space"},
		{errors.New("broken"), exitFailed, "--callers"},
	} {
		var e *exitError
		if err := benchError(tc.err); !errors.As(err, &e) || e.code != tc.code || !strings.Contains(e.hint, tc.hint) {
			t.Errorf("%v: %+v", tc.err, e)
		}
	}
	if err := benchError(nil); err != nil {
		t.Error(err)
	}
}
