package main

import (
	"context"
	"database/sql"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/twinhold/twinhold/config"
	"github.com/twinhold/twinhold/internal/conntag"
)

// metered opens pod-1's schema as a router does, with its metrics on a listener like a router's. A token other than
// "" is wanted.
func metered(t *testing.T, c *client, token string) (db *sql.DB, addr string) {
	t.Helper()
	cfg, err := config.LoadEnv(c.config, func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	meter, err := conntag.New(conntag.Options{Registerer: prometheus.WrapRegistererWith(prometheus.Labels{"pod": "pod-1"}, reg)})
	if err != nil {
		t.Fatal(err)
	}
	dsn, err := mysql.ParseDSN(cfg.Pods[0].MySQL.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	connector, err := mysql.NewConnector(dsn)
	if err != nil {
		t.Fatal(err)
	}
	db = sql.OpenDB(meter.Wrap(connector))
	t.Cleanup(func() { db.Close() })
	metrics := promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if token != "" && r.Header.Get("Authorization") != "Bearer "+token {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		metrics.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return db, strings.TrimPrefix(srv.URL, "http://")
}

func sendTagged(t *testing.T, db *sql.DB) {
	t.Helper()
	for _, q := range []string{"/* conn_tag:slow */ DO SLEEP(0.05)", "/* conn_tag:quick */ DO 1", "/* conn_tag:quick */ DO 1", "DO 2"} {
		if _, err := db.ExecContext(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.ExecContext(t.Context(), "/* conn_tag:wrong */ DO nothing"); err == nil {
		t.Fatal("a statement that makes no sense passed")
	}
}

// tagged finds a tag in an answer's list.
func tagged(t *testing.T, list any, tag string) map[string]any {
	t.Helper()
	for _, e := range list.([]any) {
		if e := e.(map[string]any); e["tag"] == tag {
			return e
		}
	}
	t.Errorf("no tag %q in %v", tag, list)
	return map[string]any{}
}

// One pair of servers for all of it; the last part ends them.
func TestConns(t *testing.T) {
	c, stack := newClient(t)
	on := func(f func(*testing.T, *client)) func(*testing.T) {
		return func(t *testing.T) { f(t, &client{t, c.config}) }
	}
	t.Run("who holds the pool", on(connsShowsWhoHoldsThePool))
	t.Run("a token is wanted", on(connsWhereATokenIsWanted))
	t.Run("no router", on(connsWithoutARouter))
	t.Run("where the router is", on(connsFindsTheRouter))
	for _, q := range []string{"CREATE USER reader", "GRANT SELECT ON `twinhold\\_%`.* TO reader"} {
		hand(t, stack, q)
	}
	t.Run("half of it", on(connsPrintsTheHalfThatCouldBeRead))
	if err := stack.MySQL.Kill(); err != nil {
		t.Fatal(err)
	}
	c.fails(exitFailed, "pod-1", "conns", "pod-1", "--admin", "127.0.0.1:1", "--server")
}

func connsShowsWhoHoldsThePool(t *testing.T, c *client) {
	db, addr := metered(t, c, "")
	sendTagged(t, db)
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.ExecContext(t.Context(), "/* conn_tag:keeper */ START TRANSACTION WITH CONSISTENT SNAPSHOT"); err != nil {
		t.Fatal(err)
	}

	v := c.json(exitDone, "conns", "pod-1", "--admin", addr, "--server")
	c.want(v, "pod", "pod-1", "untagged", 1.0)
	slow := tagged(t, v["tags"], "slow")
	c.want(slow, "statements", 1.0, "in_use", 0.0, "errors", 0.0)
	if held := slow["held_s"].(float64); held < 0.05 || slow["longest_ms"].(float64) < 50 {
		t.Errorf("slow: %v", slow)
	}
	c.want(tagged(t, v["tags"], "quick"), "statements", 2.0)
	c.want(tagged(t, v["tags"], "wrong"), "statements", 1.0, "errors", 1.0, "lock_waits", 0.0, "deadlocks", 0.0)
	c.want(tagged(t, v["tags"], "keeper"), "in_use", 1.0)
	c.want(tagged(t, v["server"], "slow"), "statements", 1.0)
	c.want(tagged(t, v["server"], "keeper"), "statements", 1.0, "idle_in_trx", 1.0, "running", 0.0)
	held := 1e9
	for _, e := range v["tags"].([]any) {
		now := e.(map[string]any)["held_s"].(float64)
		if now > held {
			t.Errorf("not sorted by seconds held: %v", v["tags"])
		}
		held = now
	}

	text := runCLI(t, "conns", "pod-1", "--admin", addr, "--server", "--config", c.config)
	for _, want := range []string{"pod-1, by this router:", "held, s", "slow\n", "1 statement without a conn_tag", "by its MySQL, all clients", "idle in trx"} {
		if text.code != exitDone || !strings.Contains(text.out, want) {
			t.Errorf("exit %d, no %q in\n%s%s", text.code, want, text.out, text.err)
		}
	}
	// The other pod is not this router's, so a sum would be half of the truth.
	c.fails(exitFailed, "counts no connection of pod-2", "conns", "--admin", addr)
	all := c.json(exitDone, "conns", "--admin", addr, "--server")
	c.want(all, "pod", "all", "untagged", 1.0)
	c.want(tagged(t, all["tags"], "quick"), "statements", 2.0)
	if len(all["pods"].([]any)) != 2 {
		t.Errorf("pods: %v", all["pods"])
	}
}

// What the server does not tell is an error with the statement that mends it, after what the router told.
func connsPrintsTheHalfThatCouldBeRead(t *testing.T, c *client) {
	db, addr := metered(t, c, "")
	sendTagged(t, db)
	yaml, err := os.ReadFile(c.config)
	if err != nil {
		t.Fatal(err)
	}
	c.config = configFile(t, strings.ReplaceAll(string(yaml), "root@", "reader@"))
	const grant = "GRANT SELECT ON performance_schema.* TO 'reader'@'%'"
	for _, format := range []string{"text", "json"} {
		res := runCLI(t, "conns", "pod-1", "--admin", addr, "--server", "--config", c.config, "--format", format)
		if res.code != exitFailed || !strings.Contains(res.out, "slow") || !strings.Contains(res.out, "denied") || !strings.Contains(res.err, "error: MySQL's half is missing: pod-1: ") ||
			!strings.HasSuffix(res.err, "hint: as an administrator: "+grant+"\n") {
			t.Errorf("exit %d\n%s%s", res.code, res.out, res.err)
		}
	}
	res := runCLI(t, "conns", "pod-1", "--admin", addr, "--config", c.config)
	if res.code != exitDone || res.err != "" {
		t.Errorf("the router's half alone: exit %d, %s", res.code, res.err)
	}
	// Both halves are missing: there is nothing to print.
	c.fails(exitFailed, grant, "conns", "pod-1", "--admin", "127.0.0.1:1", "--server")
}

// The router is found by address or URL, and what is neither is told how to be written.
func connsFindsTheRouter(t *testing.T, c *client) {
	db, addr := metered(t, c, "")
	sendTagged(t, db)
	for _, admin := range []string{addr, "http://" + addr, "HTTP://" + addr + "/", "http://" + addr + "/metrics"} {
		if res := runCLI(t, "conns", "pod-1", "--admin", admin, "--config", c.config); res.code != exitDone || !strings.Contains(res.out, "slow") {
			t.Errorf("--admin %s: exit %d\n%s%s", admin, res.code, res.out, res.err)
		}
	}
	for _, admin := range []string{"http://127.0.0.1", "ftp://" + addr, "http://me:pw@" + addr, "http://" + addr + "/admin", "10.0.0.7", "http://"} {
		c.fails(exitFailed, "as in --admin 10.0.0.7:7071", "conns", "pod-1", "--admin", admin)
	}
	c.fails(exitFailed, "write --admin http://HOST:PORT", "conns", "pod-1", "--admin", "https://"+addr)
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	c.fails(exitFailed, "Write --admin https://HOST:PORT", "conns", "pod-1", "--admin", secure.Listener.Addr().String())
	c.fails(exitFailed, "is it that router's?", "conns", "pod-1", "--admin", secure.URL)
}

func connsWithoutARouter(t *testing.T, c *client) {
	c.fails(exitFailed, "no router answers", "conns", "pod-1", "--admin", "127.0.0.1:1")
	c.fails(exitFailed, "cannot be found", "conns", "pod-1", "--admin", "127.0.0.1:0")
	c.fails(exitFailed, "are no metrics", "conns", "pod-1", "--admin", notMetrics(t))
	c.fails(exitFailed, `no pod "pod-9"`, "conns", "pod-9")
	v := c.json(exitDone, "conns", "pod-1", "--admin", "127.0.0.1:1", "--server")
	if len(v["tags"].([]any)) != 0 || len(v["server"].([]any)) == 0 {
		t.Errorf("%v", v)
	}
	text := runCLI(t, "conns", "pod-1", "--admin", "127.0.0.1:1", "--server", "--config", c.config)
	if text.code != exitDone || strings.Contains(text.out, "by this router") || !strings.Contains(text.err, "warning: the router's half is missing") {
		t.Errorf("exit %d\n%s%s", text.code, text.out, text.err)
	}
}

// notMetrics is a listener that answers, but is no router's.
func notMetrics(t *testing.T) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("<html>hello</html>"))
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

func connsWhereATokenIsWanted(t *testing.T, c *client) {
	const token = "0123456789abcdef0123"
	db, addr := metered(t, c, token)
	sendTagged(t, db)
	c.fails(exitFailed, "wants a token", "conns", "pod-1", "--admin", addr)
	var out, errs strings.Builder
	code := run(context.Background(), []string{"conns", "pod-1", "--admin", addr, "--config", c.config}, streams{out: &out, err: &errs},
		func(name string) (string, bool) { return token, name == adminToken })
	if code != exitDone || !strings.Contains(out.String(), "quick") || strings.Contains(out.String()+errs.String(), token) {
		t.Errorf("exit %d\n%s%s", code, out.String(), errs.String())
	}
}
