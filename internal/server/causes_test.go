package server

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// linesOfLog empties a log and gives its lines, without their times.
func linesOfLog(c *causes, b *bytes.Buffer) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var lines []string
	for line := range strings.Lines(b.String()) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		lines = append(lines, rest)
	}
	b.Reset()
	return lines
}

func wantLines(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s:\n got %s\nwant %s", what, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

func TestACauseIsLoggedOnceAndThenCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		c := newCauses(slog.New(slog.NewTextHandler(&out, nil)))
		refused := func(pod, op string, port int) failure {
			return failure{
				level: slog.LevelWarn, pod: pod, op: op, shop: 7, reservation: "0198f2a0-7c1e-7abc-8def-0123456789ab",
				cause: fmt.Sprintf("read tcp 10.0.0.1:%d: refused", port),
			}
		}
		line := func(level, what, pod, op string, port int, more string) string {
			return fmt.Sprintf(`level=%s msg=%q pod=%s op=%s shop=7 reservation=0198f2a0-7c1e-7abc-8def-0123456789ab cause="read tcp 10.0.0.1:%d: refused"%s`, level, what, pod, op, port, more)
		}
		const first, again = "a call could not be answered", "calls could not be answered, as before"
		for port := range 100 {
			c.add(refused("pod-1", "Claim", port))
		}
		c.add(refused("pod-2", "Claim", 200))
		c.add(refused("pod-1", "Reserve", 300))
		wantLines(t, "at once", linesOfLog(c, &out),
			line("WARN", first, "pod-1", "Claim", 0, ""), line("WARN", first, "pod-2", "Claim", 200, ""), line("WARN", first, "pod-1", "Reserve", 300, ""))
		<-time.After(causeWindow + time.Second) // inside a synctest bubble, where this takes no time
		synctest.Wait()
		wantLines(t, "after the window", linesOfLog(c, &out), line("WARN", again, "pod-1", "Claim", 99, " left_out=99"))
		c.add(refused("pod-1", "Claim", 400))
		c.add(refused("pod-1", "Claim", 401))
		wantLines(t, "met again", linesOfLog(c, &out), line("WARN", first, "pod-1", "Claim", 400, ""))
		c.close()
		wantLines(t, "at the end", linesOfLog(c, &out), line("WARN", again, "pod-1", "Claim", 401, " left_out=1"))
		c.add(refused("pod-1", "Claim", 500))
		wantLines(t, "after the end", linesOfLog(c, &out), line("WARN", first, "pod-1", "Claim", 500, ""))
	})
}

// Causes that differ in every call fill neither the log nor the memory.
func TestCausesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		c := newCauses(slog.New(slog.NewTextHandler(&out, nil)))
		for i := range 3 * maxCauses {
			c.add(failure{op: "Claim", cause: strings.Repeat("x", i+1)})
		}
		c.close()
		got := linesOfLog(c, &out)
		if len(c.known) != 0 || len(got) != maxCauses+2 || !strings.HasSuffix(got[len(got)-1], fmt.Sprintf("left_out=%d", 2*maxCauses-1)) {
			t.Errorf("%d are remembered, %d lines, the last %s", len(c.known), len(got), got[len(got)-1])
		}
	})
}

func TestNoCauseHasAKey(t *testing.T) {
	for _, c := range []struct{ text, key, want string }{
		{"Duplicate entry '1-order-1' for key 'reservations.key'", "order-17", "Duplicate entry <key> for key 'reservations.key'"},
		{"Duplicate entry 'it's' for key", "it's one", "Duplicate entry <key> for key"},
		{"{pod-1}:key:1:order-17 is a list", "order-17", "{pod-1}:key:1:<key> is a list"},
		{"key \"a\\nb, and more\"", "a\nb, and more", "key \"<key>\""},
		{"k is in the key k, and in k-1", "k", "<key> is in the key <key>, and in <key>-1"},
		{"that .* is no pattern, .*", ".*", "that <key> is no pattern, <key>"},
		{"nothing", "", "nothing"},
	} {
		if got := withoutKey(c.text, c.key); got != c.want {
			t.Errorf("%q without %q is %q, want %q", c.text, c.key, got, c.want)
		}
	}
}
