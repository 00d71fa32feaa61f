package main

import (
	"strings"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/podset/podsettest"
)

// paused is a server that hangs: its connections stay open, and it says nothing.
type paused interface {
	Pause() error
	Resume() error
}

func pause(t *testing.T, s paused) (resume func()) {
	t.Helper()
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := s.Resume(); err != nil {
			t.Error(err)
		}
	}
}

// A store that hangs is named, soon, and hides nothing of what the other says.
func TestAStoreThatHangsHidesNothingOfTheOther(t *testing.T) {
	c, stack := newClient(t)
	bucket := []string{"--shop", "1", "--item", "1", "--group", "1"}
	c.json(exitDone, append([]string{"stock", "set", "--quantity", "5"}, bucket...)...)
	id := c.json(exitDone, "reserve", "--shop", "1", "--key", "k", "--line", "1:1:2")["reservationId"].(string)
	for _, hung := range []struct {
		name, other string
		server      paused
	}{{"redis", "mysql", stack.Redis}, {"mysql", "redis", stack.MySQL}} {
		resume := pause(t, hung.server)
		began := time.Now()
		stock := c.json(exitDone, append([]string{"stock", "get", "--both"}, bucket...)...)
		rec := c.json(exitDone, "get", "--shop", "1", id, "--both")
		c.want(stock[hung.other].(map[string]any), "onHand", "5", "held", "2", "truth", "redis")
		c.want(rec[hung.other].(map[string]any), "state", "HELD")
		for _, v := range []map[string]any{stock, rec} {
			c.want(v, hung.name, nil, hung.other+"Error", nil)
			if v[hung.name+"Error"] == nil {
				t.Errorf("%s hangs, and is not named: %v", hung.name, v)
			}
		}
		res := runCLI(t, "doctor", "--config", c.config)
		if res.code != exitRefused || !strings.Contains(res.out, hung.name+" does not tell: ") ||
			!strings.Contains(res.out, hung.other+" says epoch 1, shadow") || strings.Contains(res.out, "migrate") {
			t.Errorf("doctor with %s hung: exit %d\n%s", hung.name, res.code, res.out)
		}
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("three looks with %s hung took %v", hung.name, took)
		}
		resume()
	}
}

// What a person runs while MySQL hangs ends with the router's words, and with what to do.
func TestTheRoutersWordsArriveWhileMySQLHangs(t *testing.T) {
	pods, stack := podsettest.Pods(t, 1)
	cutover := strings.ReplaceAll(string(pods.YAML), "source_of_truth: redis", "source_of_truth: mysql")
	text, _, _ := knownPorts(t, []byte(cutover), "")
	c := &client{t, configFile(t, text)}
	p := startServe(t, c.config)
	bucket := []string{"--shop", "1", "--item", "1", "--group", "1"}
	c.json(exitDone, append([]string{"stock", "set", "--quantity", "5"}, bucket...)...)
	id := c.json(exitDone, "reserve", "--shop", "1", "--key", "k", "--line", "1:1:2")["reservationId"].(string)
	resume := pause(t, stack.MySQL)
	for _, args := range [][]string{
		{"reserve", "--shop", "1", "--key", "k2", "--line", "1:1:1"},
		{"claim", "--shop", "1", id},
		{"release", "--shop", "1", id},
		append([]string{"stock", "adjust", "--delta", "1", "--id", "a"}, bucket...),
	} {
		began := time.Now()
		c.fails(exitFailed, ": retry with the same key\nhint: run the same command again, with the same key or id", args...)
		t.Log(args[0], time.Since(began).Round(time.Millisecond))
	}
	resume()
	c.json(exitDone, "claim", "--shop", "1", id)
	if code, log := p.term(t); code != exitDone {
		t.Errorf("exit %d:\n%s", code, log)
	}
}
