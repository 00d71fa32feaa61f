package main

import (
	"database/sql"
	"os"
	"strings"
	"testing"

	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/mysqlstore"
)

// hand changes a pod's rows by hand.
func hand(t *testing.T, stack *devstack.Stack, query string) {
	t.Helper()
	db := pod1(t, stack)
	if _, err := db.ExecContext(t.Context(), "/* conn_tag:test */ "+query); err != nil {
		t.Fatal(err)
	}
}

func pod1(t *testing.T, stack *devstack.Stack) *sql.DB {
	t.Helper()
	db, err := mysqlstore.OpenDB(stack.MySQL.DSN("twinhold_pod_1"), mysqlstore.Options{MaxOpenConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func TestReconcileByHand(t *testing.T) {
	t.Parallel()
	c, stack := newClient(t)
	c.fails(exitFailed, `no pod "pod-9"`, "reconcile", "pod-9")
	c.fails(exitFailed, "takes POD", "reconcile")
	c.fails(exitFailed, "--rounds 0", "reconcile", "pod-1", "--rounds", "0")
	c.want(c.json(exitDone, "stock", "set", "--shop", "5", "--item", "9", "--group", "2", "--quantity", "20"), "onHand", "20")

	well := c.json(exitDone, "reconcile", "pod-1")
	c.want(well, "pod", "pod-1", "ok", true, "rounds", 1.0, "once", false, "source", "primary")
	c.want(well["read"].(map[string]any), "buckets", 1.0)
	if len(well["findings"].([]any)) != 0 {
		t.Errorf("findings: %v", well["findings"])
	}

	hand(t, stack, "UPDATE inventory_ledger SET unpooled = unpooled + 2")
	wrong := c.json(exitRefused, "reconcile", "pod-1", "--pause", "1ms")
	c.want(wrong, "ok", false, "rounds", 3.0)
	c.want(wrong["findings"].([]any)[0].(map[string]any), "check", "I2", "bucket", "5:9:2", "rounds", 3.0, "lasting", true)
	once := c.json(exitRefused, "reconcile", "pod-1", "--once")
	c.want(once, "ok", false, "rounds", 1.0, "once", true)
	c.want(once["findings"].([]any)[0].(map[string]any), "rounds", 1.0, "lasting", false)

	res := runCLI(t, "reconcile", "pod-1", "--once", "--config", c.config)
	for _, want := range []string{"this is one round", "I2  bucket 5:9:2", "off by +2", "-> ", "freeze pod-1 --bucket 5:9:2", "SET unpooled = unpooled - 2 WHERE"} {
		if !strings.Contains(res.out, want) {
			t.Errorf("stdout lacks %q:\n%s", want, res.out)
		}
	}
	c.configReplica()
	away := c.json(exitRefused, "reconcile", "pod-1", "--pause", "1ms")
	c.want(away, "source", "primary", "ok", false)
	if notes := away["notes"].([]any); len(notes) != 1 || !strings.Contains(notes[0].(string), "the replica could not be read") {
		t.Errorf("notes: %v", notes)
	}
	hand(t, stack, "UPDATE inventory_ledger SET unpooled = unpooled - 2")
	c.want(c.json(exitDone, "reconcile", "pod-1", "--once"), "ok", true, "once", true)
	if err := stack.MySQL.Kill(); err != nil {
		t.Fatal(err)
	}
	c.fails(exitFailed, "reconcile pod pod-1: ", "reconcile", "pod-1")
}

// configReplica names a replica that nobody answers for.
func (c *client) configReplica() {
	c.t.Helper()
	text, err := os.ReadFile(c.config)
	if err != nil {
		c.t.Fatal(err)
	}
	before, after, found := strings.Cut(string(text), "    mysql: ")
	if !found {
		c.t.Fatalf("no mysql in\n%s", text)
	}
	if err := os.WriteFile(c.config, []byte(before+"    mysql_replica: \"root@tcp(127.0.0.1:1)/none\"\n    mysql: "+after), 0o600); err != nil {
		c.t.Fatal(err)
	}
}
