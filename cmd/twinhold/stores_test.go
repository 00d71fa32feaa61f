package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/internal/podset/podsettest"
)

// asTwinhold in the environment makes the test binary the command itself, for tests that need a process of its own.
const asTwinhold = "TWINHOLD_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asTwinhold) != "" {
		main()
	}
	devtest.Main(m, devtest.Needs{})
}

// client runs command lines against a pod on private servers.
type client struct {
	t      *testing.T
	config string
}

func newClient(t *testing.T) (*client, *devstack.Stack) {
	t.Helper()
	pods, stack := podsettest.Pods(t, 2)
	return &client{t, configFile(t, string(pods.YAML))}, stack
}

// json runs a command line and reads its result.
func (c *client) json(code int, args ...string) map[string]any {
	c.t.Helper()
	res := runCLI(c.t, append(args, "--config", c.config, "--format", "json")...)
	if res.code != code {
		c.t.Fatalf("%v: exit %d, want %d\n%s%s", args, res.code, code, res.out, res.err)
	}
	var v map[string]any
	if err := json.Unmarshal([]byte(res.out), &v); err != nil {
		c.t.Fatalf("%v: stdout is not one JSON value: %v\n%s", args, err, res.out)
	}
	return v
}

// fails runs a command line that must end in an error with these words and a hint, and print no result.
func (c *client) fails(code int, want string, args ...string) {
	c.t.Helper()
	res := runCLI(c.t, append(args, "--config", c.config)...)
	if res.code != code || !strings.Contains(res.err, want) || !strings.Contains(res.err, "\nhint: ") || res.out != "" {
		c.t.Errorf("%v: exit %d (want %d), stdout %q, stderr %q (want %q and a hint)", args, res.code, code, res.out, res.err, want)
	}
}

func (c *client) want(v map[string]any, pairs ...any) {
	c.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if v[pairs[i].(string)] != pairs[i+1] {
			c.t.Errorf("%s is %v, want %v (in %v)", pairs[i], v[pairs[i].(string)], pairs[i+1], v)
		}
	}
}

func TestAReservationsLifeByHand(t *testing.T) {
	c, _ := newClient(t)
	file := filepath.Join(t.TempDir(), "stock.csv")
	if err := os.WriteFile(file, []byte("shop,item,group,quantity\n1,1001,1,10\n1001,7,1,3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.want(c.json(exitDone, "stock", "import", file), "imported", 2.0, "existing", 0.0)
	c.want(c.json(exitDone, "stock", "import", file), "imported", 0.0, "existing", 2.0)

	reserve := []string{"reserve", "--shop", "1", "--key", "a", "--line", "1001:1:4"}
	first := c.json(exitDone, reserve...)
	c.want(first, "outcome", "GRANTED", "state", "HELD", "decidedBy", "redis", "epoch", "1", "replayed", false)
	c.want(c.json(exitDone, reserve...), "reservationId", first["reservationId"], "replayed", true)
	c.fails(exitFailed, "another request", "reserve", "--shop", "1", "--key", "a", "--line", "1001:1:5")

	rejected := c.json(exitRefused, "reserve", "--shop", "1", "--key", "b", "--line", "1001:1:7")
	c.want(rejected, "outcome", "REJECTED", "state", "REJECTED")
	short := rejected["shortages"].([]any)[0].(map[string]any)
	c.want(short, "itemId", "1001", "groupId", "1", "requested", 7.0, "available", 6.0)

	id := first["reservationId"].(string)
	c.fails(exitFailed, "no such reservation", "get", "--shop", "2", id)
	c.want(c.json(exitDone, "claim", "--shop", "1", id), "state", "CLAIMED", "late", false)
	c.want(c.json(exitDone, "claim", "--shop", "1", id), "state", "CLAIMED", "late", false)
	c.fails(exitFailed, "cannot release", "release", "--shop", "1", id)
	c.want(c.json(exitDone, "get", "--shop", "1", id), "state", "CLAIMED", "reservationId", id)
	both := c.json(exitDone, "get", "--shop", "1", id, "--both")
	for _, store := range []string{"redis", "mysql"} {
		c.want(both[store].(map[string]any), "state", "CLAIMED")
	}

	second := c.json(exitDone, "reserve", "--shop", "1", "--key", "c", "--line", "1001:1:6")["reservationId"].(string)
	c.want(c.json(exitDone, "release", "--shop", "1", second), "state", "RELEASED", "replayed", false)
	c.want(c.json(exitDone, "release", "--shop", "1", second), "state", "RELEASED", "replayed", true)
	c.fails(exitFailed, "cannot claim", "claim", "--shop", "1", second)
	c.want(c.json(exitDone, "stock", "get", "--shop", "1", "--item", "1001", "--group", "1"),
		"available", "6", "held", "0", "onHand", "6", "truth", "redis")
}

func TestStockByHand(t *testing.T) {
	c, _ := newClient(t)
	bucket := []string{"--shop", "5", "--item", "9", "--group", "2"}
	on := func(words ...string) []string { return append(words, bucket...) }
	c.fails(exitFailed, "unknown bucket 5:9:2", on("stock", "get")...)
	c.fails(exitFailed, "unknown bucket 5:9:2", append(on("stock", "adjust"), "--delta", "1", "--id", "x")...)
	c.want(c.json(exitDone, append(on("stock", "set"), "--quantity", "20")...), "available", "20", "onHand", "20")
	c.want(c.json(exitDone, append(on("stock", "set"), "--quantity", "15")...), "available", "15", "onHand", "15")
	adjust := append(on("stock", "adjust"), "--delta", "-5", "--id", "w1")
	c.want(c.json(exitDone, adjust...), "onHand", "10")
	c.want(c.json(exitDone, adjust...), "onHand", "10")
	c.fails(exitFailed, "was used with another delta", append(on("stock", "adjust"), "--delta", "-6", "--id", "w1")...)
	c.json(exitDone, "reserve", "--shop", "5", "--key", "k", "--line", "9:2:8")
	c.fails(exitFailed, "only 2 are not promised", append(on("stock", "adjust"), "--delta", "-3", "--id", "w2")...)
	c.fails(exitFailed, "only 2 are not promised", append(on("stock", "set"), "--quantity", "7")...)
	both := c.json(exitDone, append(on("stock", "get"), "--both")...)
	for _, store := range []string{"redis", "mysql"} {
		c.want(both[store].(map[string]any), "available", "2", "held", "8", "onHand", "10")
	}
}

func TestMistakesInStockFilesImportNothing(t *testing.T) {
	c, _ := newClient(t)
	for text, want := range map[string]string{
		"1,1,1,5\n1,2,1\n":       ":2: has 3 fields",
		"1,1,1,5\n1,x,1,5\n":     `:2: item "x" is not a whole number`,
		"1,1,1,5\n1,1,1,6\n":     ":2: bucket 1:1:1 stands on line 1 too",
		"1,1,1,-1\n":             ":1: quantity -1 is out of range",
		"0,1,1,1\n":              ":1: shopId 0",
		"":                       "holds no stock",
		"1,1,1,5\n99999,1,1,5\n": "shop 99999 belongs to no pod",
		"1,1,1,\"5\n":            "quote",
	} {
		file := filepath.Join(t.TempDir(), "stock.csv")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c.fails(exitFailed, want, "stock", "import", file)
	}
	c.fails(exitFailed, "unknown bucket 1:1:1", "stock", "get", "--shop", "1", "--item", "1", "--group", "1")
}

func TestBadRequestsByHand(t *testing.T) {
	c, _ := newClient(t)
	c.json(exitDone, "stock", "set", "--shop", "1", "--item", "1", "--group", "1", "--quantity", "5")
	for _, tc := range []struct {
		want string
		args []string
	}{
		{"--key is empty", []string{"reserve", "--shop", "1", "--line", "1:1:1"}},
		{"--line is empty", []string{"reserve", "--shop", "1", "--key", "k"}},
		{"is not ITEM:GROUP:QTY", []string{"reserve", "--shop", "1", "--key", "k", "--line", "1:1"}},
		{"is not ITEM:GROUP:QTY", []string{"reserve", "--shop", "1", "--key", "k", "--line", "1:1:1.5"}},
		{"quantity 0 is out of range", []string{"reserve", "--shop", "1", "--key", "k", "--line", "1:1:0"}},
		{"quantity 2147483648 is out of range", []string{"reserve", "--shop", "1", "--key", "k", "--line", "1:1:2147483648"}},
		{"sums to 2147483648", []string{"reserve", "--shop", "1", "--key", "k", "--line", "1:1:2147483647", "--line", "1:1:1"}},
		{"has 256 bytes", []string{"reserve", "--shop", "1", "--key", strings.Repeat("k", 256), "--line", "1:1:1"}},
		{"is too short", []string{"reserve", "--shop", "1", "--key", "k", "--line", "1:1:1", "--ttl", "1700ms"}},
		{"is too long", []string{"reserve", "--shop", "1", "--key", "k", "--line", "1:1:1", "--ttl", "11m"}},
		{"unknown bucket 1:2:1", []string{"reserve", "--shop", "1", "--key", "k", "--line", "2:1:1"}},
		{"shop 5000 belongs to no pod", []string{"reserve", "--shop", "5000", "--key", "k", "--line", "1:1:1"}},
		{"is not a reservation id", []string{"claim", "--shop", "1", "17"}},
		{"no such reservation", []string{"claim", "--shop", "1", "0198f2a0-7c1e-7abc-8def-0123456789ab"}},
		{"delta 0 is out of range", []string{"stock", "adjust", "--shop", "1", "--item", "1", "--group", "1", "--id", "a"}},
	} {
		c.fails(exitFailed, tc.want, tc.args...)
	}
	c.want(c.json(exitDone, "stock", "get", "--shop", "1", "--item", "1", "--group", "1"), "available", "5", "held", "0")
}

func TestDoctorNamesWhatIsWrong(t *testing.T) {
	c, stack := newClient(t)
	if v := c.json(exitDone, "doctor"); v["ok"] != true {
		t.Errorf("the private servers are not well: %v", v)
	}
	runRedis(t, stack, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	runRedis(t, stack, "CONFIG", "SET", "appendonly", "no")
	v := c.json(exitRefused, "doctor")
	failed := map[string]bool{}
	for _, f := range v["findings"].([]any) {
		f := f.(map[string]any)
		if f["result"] == resultFailure {
			failed[fmt.Sprint(f["store"], " ", f["check"])] = true
			if f["fix"] == "" {
				t.Errorf("no fix for %v", f)
			}
		}
	}
	if len(failed) != 2 || !failed["redis maxmemory-policy"] || !failed["redis appendonly"] {
		t.Errorf("failures: %v", failed)
	}
	if err := stack.Redis.Stop(); err != nil {
		t.Fatal(err)
	}
	c.json(exitRefused, "doctor")
}

// A grant that the mirror has not heard of is a grant: the command's exit code is the answer's.
func TestAnswersStandThoughMySQLIsGone(t *testing.T) {
	c, stack := newClient(t)
	c.json(exitDone, "stock", "set", "--shop", "1", "--item", "1", "--group", "1", "--quantity", "5")
	if err := stack.MySQL.Kill(); err != nil {
		t.Fatal(err)
	}
	first := c.json(exitDone, "reserve", "--shop", "1", "--key", "k", "--line", "1:1:2")
	c.want(first, "outcome", "GRANTED")
	c.fails(exitFailed, "mysql", "claim", "--shop", "1", first["reservationId"].(string))
	if err := stack.MySQL.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.want(c.json(exitDone, "claim", "--shop", "1", first["reservationId"].(string)), "state", "CLAIMED")
}

func TestDueHoldsAreEndedFirst(t *testing.T) {
	c, _ := newClient(t)
	c.json(exitDone, "stock", "set", "--shop", "1", "--item", "1", "--group", "1", "--quantity", "5")
	id := c.json(exitDone, "reserve", "--shop", "1", "--key", "k", "--line", "1:1:4", "--ttl", "1800ms")["reservationId"].(string)
	devtest.Until(t, "the hold has run out", func() bool {
		return c.json(exitDone, "get", "--shop", "1", id)["state"] == "EXPIRED"
	})
	c.want(c.json(exitDone, "reserve", "--shop", "1", "--key", "k2", "--line", "1:1:5"), "outcome", "GRANTED")
}

// A pod's life by hand in a stage in which MySQL decides; from its first start on the fences are what is true.
func TestAPodInCutoverByHand(t *testing.T) {
	c, _ := newClient(t)
	shadow, err := os.ReadFile(c.config)
	if err != nil {
		t.Fatal(err)
	}
	cutover := strings.ReplaceAll(string(shadow), "source_of_truth: redis", "source_of_truth: mysql")
	if err := os.WriteFile(c.config, []byte(cutover), 0o600); err != nil {
		t.Fatal(err)
	}
	bucket := []string{"--shop", "1", "--item", "1", "--group", "1"}
	c.want(c.json(exitDone, append([]string{"stock", "set", "--quantity", "5"}, bucket...)...), "onHand", "5", "truth", "mysql")
	first := c.json(exitDone, "reserve", "--shop", "1", "--key", "k", "--line", "1:1:2")
	c.want(first, "outcome", "GRANTED", "decidedBy", "mysql", "epoch", "1", "replayed", false)
	id := first["reservationId"].(string)
	c.want(c.json(exitDone, "reserve", "--shop", "1", "--key", "k", "--line", "1:1:2"), "reservationId", id, "replayed", true)
	c.want(c.json(exitRefused, "reserve", "--shop", "1", "--key", "k2", "--line", "1:1:4"), "outcome", "REJECTED", "decidedBy", "mysql")
	c.want(c.json(exitDone, "claim", "--shop", "1", id), "state", "CLAIMED")
	both := c.json(exitDone, "get", "--shop", "1", id, "--both")
	for _, store := range []string{"redis", "mysql"} {
		c.want(both[store].(map[string]any), "state", "CLAIMED", "decidedBy", "mysql")
	}
	if err := os.WriteFile(c.config, shadow, 0o600); err != nil {
		t.Fatal(err)
	}
	res := runCLI(t, append([]string{"stock", "get", "--config", c.config, "--format", "json"}, bucket...)...)
	if res.code != exitDone || !strings.Contains(res.err, "declares shadow, but the pod is in cutover") || !strings.Contains(res.out, `"onHand":"3","truth":"mysql"`) {
		t.Errorf("exit %d, stdout %q, stderr %q", res.code, res.out, res.err)
	}
}

func TestDoctorSeesStoresThatDoNotBelongTogether(t *testing.T) {
	c, stack := newClient(t)
	c.json(exitDone, "stock", "set", "--shop", "1", "--item", "1", "--group", "1", "--quantity", "5")
	runRedis(t, stack, "FLUSHALL")
	res := runCLI(t, "doctor", "--config", c.config)
	if res.code != exitRefused || !strings.Contains(res.out, "the fences differ: Redis none, MySQL epoch 1, shadow") {
		t.Errorf("exit %d\n%s", res.code, res.out)
	}
}

func TestDemoEndsWithOK(t *testing.T) {
	began := time.Now()
	res := runCLI(t, "demo")
	if res.code != exitDone || !strings.HasSuffix(res.out, "\ndemo: ok\n") {
		t.Fatalf("exit %d after %v\n%s\n%s", res.code, time.Since(began), res.out, res.err)
	}
	for _, want := range []string{"compared", "unexplained      0", "I1 ok", "I11 ok", "reserve, ms"} {
		if !strings.Contains(res.out, want) {
			t.Errorf("the demo does not show %q:\n%s", want, res.out)
		}
	}
	if strings.Contains(res.err, "demo: ok") {
		t.Error("the last line went to stderr")
	}
}

func TestReplayIntoAPodThatIsInUse(t *testing.T) {
	c, _ := newClient(t)
	orders := filepath.Join("..", "..", "testdata", "traffic", "online-retail-2011-12-06.csv")
	args := []string{"replay", "--orders", orders, "--stock", "plenty", "--pod", "pod-2"}
	v := c.json(exitDone, args...)
	c.want(v, "ok", true, "unexplained", 0.0)
	again := runCLI(t, append(args, "--config", c.config)...)
	if again.code != exitFailed || !strings.Contains(again.err, "key prefix") {
		t.Errorf("the same orders again: exit %d, %s", again.code, again.err)
	}
	c.want(c.json(exitDone, append(args, "--key-prefix", "second-")...), "ok", true)
}
