package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
)

func TestLabOnTheConfiguredServers(t *testing.T) {
	c, _ := newClient(t)
	v := c.json(exitDone, "lab", "--pod", "pod-2", "--step", "3")
	steps := v["lab"].([]any)
	if len(steps) != 1 {
		t.Fatalf("%d steps", len(steps))
	}
	first := steps[0].(map[string]any)
	c.want(first, "step", 3.0, "ok", true)
	c.want(first["facts"].(map[string]any), "locks_composite_key", 5.0, "locks_auto_increment", 10.0)
	if first["name"] == "" || first["means"] == "" {
		t.Errorf("not told: %v", first)
	}
	text := runCLI(t, "lab", "--config", c.config, "--step", "1")
	if text.code != exitDone || strings.Count(text.out, "\n   ok: ") != 1 || !strings.Contains(text.out, "B waits for A") {
		t.Errorf("exit %d\n%s%s", text.code, text.out, text.err)
	}
	c.fails(exitFailed, "there is no step 9", "lab", "--step", "9")
	c.fails(exitFailed, "there is no step 0", "lab", "--step", "0")
	c.fails(exitFailed, `there is no pod "pod-3"`, "lab", "--pod", "pod-3")
}

// Without a configuration the lab brings its own servers; one that was named must be there.
func TestLabWithoutAConfiguration(t *testing.T) {
	dir, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	none := filepath.Join(t.TempDir(), "none.yaml")
	if res := runCLI(t, "lab", "--step", "2", "--config", none); res.code != exitFailed || res.out != "" {
		t.Errorf("a configuration that is not there: exit %d, %q", res.code, res.out)
	}
	t.Chdir(dir) // where the private servers' files are, and no twinhold.yaml
	res := runCLI(t, "lab", "--step", "2", "--format", "json")
	var v struct {
		Lab []struct{ OK bool }
	}
	if err := json.Unmarshal([]byte(res.out), &v); err != nil || res.code != exitDone || len(v.Lab) != 1 || !v.Lab[0].OK {
		t.Errorf("exit %d, %v\n%s%s", res.code, err, res.out, res.err)
	}
}

// A server that shows something else is exit 2, with the result still on stdout.
func TestLabOnAServerThatIsSetUpDifferently(t *testing.T) {
	stack := devtest.Private(t, devstack.Options{MySQL: true, MySQLArgs: []string{"--innodb-deadlock-detect=OFF"}, Redis: true})
	text := strings.NewReplacer("redis://:${PW}@127.0.0.1:6379/0", stack.Redis.URL(0), "twinhold:${PW}@tcp(127.0.0.1:3306)/pod1", stack.MySQL.DSN("pod1")).Replace(goodConfig)
	res := runCLI(t, "lab", "--step", "5", "--config", configFile(t, text))
	if res.code != exitRefused || !strings.Contains(res.out, "! two_refillers_deadlocks is 0; the design counts on 1") || !strings.Contains(res.err, "something else in step [5]") {
		t.Errorf("exit %d\n%s%s", res.code, res.out, res.err)
	}
}
