package main

import (
	"context"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

func TestMendByHand(t *testing.T) {
	t.Parallel()
	c, stack := newClient(t)
	for want, args := range map[string][]string{
		"takes POD":              {"mend"},
		`no pod "pod-9"`:         {"mend", "pod-9", "--bucket", "1:1:1", "--from", "mysql"},
		"give --id or --bucket":  {"mend", "pod-1", "--from", "mysql"},
		"one of them":            {"mend", "pod-1", "--id", "x", "--bucket", "1:1:1", "--from", "mysql"},
		`--from "" is no store`:  {"mend", "pod-1", "--bucket", "1:1:1"},
		"is not SHOP:ITEM:GROUP": {"mend", "pod-1", "--bucket", "1:1", "--from", "mysql"},
		`--id "x" is no`:         {"mend", "pod-1", "--id", "x", "--from", "mysql"},
		"--execute needs":        {"mend", "pod-1", "--bucket", "1:1:1", "--from", "mysql", "--execute"},
	} {
		c.fails(exitFailed, want, args...)
	}
	c.want(c.json(exitDone, "stock", "set", "--shop", "5", "--item", "9", "--group", "2", "--quantity", "20"), "onHand", "20")
	id := c.json(exitDone, "reserve", "--shop", "5", "--key", "k", "--line", "9:2:3")["reservationId"].(string)
	c.fails(exitFailed, "neither store has reservation", "mend", "pod-1", "--id", "01a22fa5-1587-780b-bab6-d8658820503e", "--from", "redis")
	well := c.json(exitDone, "mend", "pod-1", "--bucket", "5:9:2", "--from", "mysql")
	c.want(well, "pod", "pod-1", "of", "bucket 5:9:2", "from", "mysql", "to", "redis", "done", false)

	client := redis.NewClient(&redis.Options{Addr: stack.Redis.Addr()})
	t.Cleanup(func() { _ = client.Close() })
	if err := client.IncrBy(context.WithoutCancel(t.Context()), "{pod-1}:avail:5:9:2", 5).Err(); err != nil {
		t.Fatal(err)
	}
	shown := c.json(exitRefused, "mend", "pod-1", "--bucket", "5:9:2", "--from", "mysql")
	if would := shown["would"].([]any); len(would) != 1 || would[0] != "available 22 becomes 17 in Redis" {
		t.Errorf("would: %v", would)
	}
	text := runCLI(t, "mend", "pod-1", "--bucket", "5:9:2", "--from", "mysql", "--config", c.config)
	for _, want := range []string{"differs  available is 22 in Redis, on_hand 20 less held 3 is 17", "would be written: available 22 becomes 17"} {
		if text.code != exitRefused || !strings.Contains(text.out, want) {
			t.Errorf("exit %d, stdout lacks %q:\n%s", text.code, want, text.out)
		}
	}
	refused := runCLI(t, "mend", "pod-1", "--bucket", "5:9:2", "--from", "redis", "--execute", "--reason", "R", "--config", c.config)
	if refused.code != exitRefused || !strings.Contains(refused.err, "the ledger is the stock") || !strings.Contains(refused.err, "\nhint: ") {
		t.Errorf("from redis: exit %d, %s", refused.code, refused.err)
	}
	c.want(c.json(exitDone, "mend", "pod-1", "--bucket", "5:9:2", "--from", "mysql", "--execute", "--reason", "INC-1"), "done", true)
	c.want(c.json(exitDone, "mend", "pod-1", "--bucket", "5:9:2", "--from", "mysql", "--execute", "--reason", "INC-1"), "done", false)

	key := "{pod-1}:res:" + id
	if err := client.HSet(context.WithoutCancel(t.Context()), key, "hash", strings.Repeat("0a", 32)).Err(); err != nil {
		t.Fatal(err)
	}
	res := runCLI(t, "mend", "pod-1", "--id", id, "--from", "mysql", "--execute", "--reason", "INC-2", "--config", c.config)
	for _, want := range []string{"differs  " + id, "WRITTEN: the request's hash 0a0a0a0a becomes", "expires  ", "on hand 20"} {
		if res.code != exitDone || !strings.Contains(res.out, want) {
			t.Errorf("exit %d, stdout lacks %q:\n%s%s", res.code, want, res.out, res.err)
		}
	}
	audit := runCLI(t, "audit", "pod-1", "--config", c.config)
	if !strings.Contains(audit.out, "INC-1") || !strings.Contains(audit.out, "INC-2") {
		t.Errorf("audit:\n%s", audit.out)
	}
}
