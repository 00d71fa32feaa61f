package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twinhold/twinhold/config"
	"github.com/twinhold/twinhold/internal/devpods"
	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/internal/podset/podsettest"
	"github.com/twinhold/twinhold/reservation"
)

// elsewhere is one pod whose Redis is a set of servers, with a router in this process.
type elsewhere struct {
	*testing.T
	pods *devpods.Pods
	pod  *podset.Pod
	log  *lines
}

// lines is what a router logs.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// newElsewhere sets a pod up in shadow, on the MySQL of the stack and the given Redis.
func newElsewhere(t *testing.T, stack *devstack.Stack, url string) *elsewhere {
	t.Helper()
	pods, err := devpods.Start(t.Context(), devpods.Options{Short: true, Stack: stack})
	if err != nil {
		t.Fatal(err)
	}
	pods.YAML = bytes.ReplaceAll(pods.YAML, []byte(stack.Redis.URL(0)), []byte(url))
	pods.Config, err = config.Parse(pods.YAML, "the pod's", func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	return &elsewhere{T: t, pods: pods, log: &lines{}}
}

// open opens the pod with a router, and gives it stock.
func (e *elsewhere) open(stock int64) {
	e.Helper()
	set := podsettest.Open(e.T, e.pods, podset.Options{Router: "A", Logger: slog.New(slog.NewTextHandler(e.log, nil))})
	set.Start()
	e.pod = set.Pods[0]
	s := []reservation.Stocking{{Bucket: reservation.Bucket{Shop: 1, Item: 1, Group: 1}, Quantity: stock}}
	if _, _, err := e.pod.Stock(e.Context(), s); err != nil {
		e.Fatal(err)
	}
}

// reserve reserves through the router, again and again while the pod is unavailable.
func (e *elsewhere) reserve(key string, quantity int64) reservation.Record {
	e.Helper()
	var res reservation.Result
	devtest.UntilWithin(e.T, 30*time.Second, "reserve "+key, func() bool {
		var err error
		res, err = e.pod.Router.Reserve(e.Context(), 1, key, []reservation.Line{{Item: 1, Group: 1, Quantity: quantity}}, 5*time.Minute)
		if err != nil && reservation.CodeOf(err) != reservation.CodeUnavailable {
			e.Fatalf("reserve %s: %v", key, err)
		}
		return err == nil
	})
	return res.Record
}

// unmirrored is a grant of a router that dies with Redis, before its mirror has heard of it.
func (e *elsewhere) unmirrored(key string, quantity int64) reservation.ID {
	e.Helper()
	req, err := reservation.NewRequest(1, key, []reservation.Line{{Item: 1, Group: 1, Quantity: quantity}}, 5*time.Minute, reservation.Limits{})
	if err != nil {
		e.Fatal(err)
	}
	id, err := reservation.NewID()
	if err != nil {
		e.Fatal(err)
	}
	res, err := e.pod.Redis.Reserve(e.Context(), e.pod.Router.Stamp(), id, req)
	if err != nil || res.Record.Outcome != reservation.Granted {
		e.Fatalf("reserve %s: %+v, %v", key, res, err)
	}
	return id
}

func (e *elsewhere) state(get func(context.Context, int64, reservation.ID) (reservation.Record, error), id reservation.ID) string {
	e.Helper()
	rec, err := get(e.Context(), 1, id)
	switch {
	case errors.Is(err, reservation.ErrNotFound):
		return "none"
	case err != nil:
		e.Fatal(err)
	}
	return rec.State.String()
}

// awaitRestored waits until the router has restored Redis by itself, above that epoch.
func (e *elsewhere) awaitRestored(above uint64) reservation.Fence {
	e.Helper()
	var f reservation.Fence
	devtest.UntilWithin(e.T, 40*time.Second, "the router restores Redis", func() bool {
		var err error
		f, err = e.pod.Redis.ReadFence(e.Context())
		return err == nil && !f.Suspect && f.Epoch > above && e.pod.Router.Stamp() == f.Stamp
	})
	return f
}

// rest brings both stores together, and checks the invariants.
func (e *elsewhere) rest() {
	e.Helper()
	if err := e.pod.Router.Queue().Drain(e.Context()); err != nil {
		e.Fatal(err)
	}
	if _, err := e.pod.Quiesce(e.Context()); err != nil {
		e.Fatal(err)
	}
	rs, ms, err := e.pod.Inspect(e.Context())
	if err != nil {
		e.Fatal(err)
	}
	if report := e.pod.Check(&rs, &ms, true); !report.OK() {
		e.Errorf("the invariants do not hold:\n%s", report)
	}
}

// command runs the product beside the router, as a person does.
func (e *elsewhere) command(args ...string) result {
	e.Helper()
	file := filepath.Join(e.TempDir(), "twinhold.yaml")
	if err := os.WriteFile(file, e.pods.YAML, 0o600); err != nil {
		e.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(e.Context(), commandWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, program.binary(e.T, "twinhold"), append(args, "--config", file)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	began := time.Now()
	err := cmd.Run()
	res := result{out: out.String(), err: errs.String(), took: time.Since(began)}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		res.code = exit.ExitCode()
	} else if err != nil {
		e.Fatal(err)
	}
	return res
}

// A failover that loses writes, in shadow: the router notices, nothing is granted before it has restored the promoted
// server by itself, what MySQL knew is there again, and what nobody else knew is the one thing that is lost. The alert
// says what was adopted, and what could not be known.
func TestI1SentinelFailoverLosesOnlyWhatMySQLLacks(t *testing.T) {
	t.Parallel()
	stack := devtest.Private(t, devstack.Options{MySQL: true, Redis: true})
	set, err := stack.AddSentinelSet(t.Context(), devstack.SentinelOptions{DownAfter: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	e := newElsewhere(t, stack, set.URL(0))
	e.open(10)
	kept := e.reserve("kept", 1)
	if n, _, err := e.pod.Redis.WaitReplica(t.Context(), 5*time.Second); err != nil || n != 1 {
		t.Fatalf("the replica has nothing: %d, %v", n, err)
	}
	before := e.pod.Router.Stamp()
	var mirrored reservation.Record
	var lost reservation.ID
	err = set.FailOver(t.Context(), func() {
		mirrored = e.reserve("mirrored", 4)
		if err := e.pod.Router.Queue().Drain(t.Context()); err != nil {
			t.Error(err)
		}
		lost = e.unmirrored("lost", 2)
	})
	if err != nil {
		t.Fatal(err)
	}
	// Of 10, 5 are promised to holds that MySQL knows: 6 at once would be too many.
	if rec := e.reserve("too many", 6); rec.Outcome != reservation.RejectedShort {
		t.Errorf("%s by a server that lacked a hold", rec.Outcome)
	}
	f := e.awaitRestored(before.Epoch)
	if f.Stage != reservation.Shadow || f.Incarnation != 2 {
		t.Errorf("%+v", f)
	}
	for id, want := range map[reservation.ID]string{kept.ID: "held", mirrored.ID: "held", lost: "none"} {
		if got := e.state(e.pod.Redis.Get, id); got != want {
			t.Errorf("in Redis: %s, want %s", got, want)
		}
	}
	for _, id := range []reservation.ID{kept.ID, mirrored.ID} {
		if res, err := e.pod.Router.Claim(t.Context(), 1, id); err != nil || res.Record.State != reservation.Claimed {
			t.Errorf("claim: %+v, %v", res, err)
		}
	}
	if _, err := e.pod.Router.Claim(t.Context(), 1, lost); !errors.Is(err, reservation.ErrNotFound) {
		t.Errorf("a claim of what was lost: %v", err)
	}
	e.rest()
	for _, want := range []string{"Redis was restored from MySQL", "adopted=1 units=4", "is lost if Redis has lost it"} {
		if !strings.Contains(e.log.String(), want) {
			t.Errorf("the alert does not say %q:\n%s", want, e.log)
		}
	}
}

// A pod's slot goes to another node. Nothing is lost, but the node is another one: the router restores it by itself, and
// that is all that anybody sees of it.
func TestI1SlotMoveHealsByItself(t *testing.T) {
	t.Parallel()
	stack := devtest.Private(t, devstack.Options{MySQL: true, Redis: true})
	c, err := stack.AddCluster(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	e := newElsewhere(t, stack, c.URL())
	e.open(1000)
	slot, err := c.Slot(t.Context(), "{pod-1}")
	if err != nil {
		t.Fatal(err)
	}
	moves := 2
	if devtest.Soak() {
		moves = 10
	}
	first := e.reserve("first", 1)
	for i := range moves {
		from, err := c.Owner(t.Context(), slot)
		if err != nil {
			t.Fatal(err)
		}
		to := c.Nodes[0]
		if to == from {
			to = c.Nodes[1]
		}
		before := e.pod.Router.Stamp()
		buyers := e.buyers(i)
		if err := c.MoveSlot(t.Context(), slot, to, nil); err != nil {
			t.Fatal(err)
		}
		if f := e.awaitRestored(before.Epoch); f.Stage != reservation.Shadow {
			t.Errorf("%+v", f)
		}
		buyers()
	}
	if res, err := e.pod.Router.Claim(t.Context(), 1, first.ID); err != nil || res.Record.State != reservation.Claimed {
		t.Errorf("claim: %+v, %v", res, err)
	}
	e.rest()
}

// buyers reserve while something happens; they end when they are told, each with all of its answers.
func (e *elsewhere) buyers(round int) (end func()) {
	ctx, stop := context.WithCancel(e.Context())
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				key := fmt.Sprintf("buyer-%d-%d-%d", round, w, n)
				for {
					call, cancel := context.WithTimeout(e.Context(), 2*time.Second)
					_, err := e.pod.Router.Reserve(call, 1, key, []reservation.Line{{Item: 1, Group: 1, Quantity: 1}}, 5*time.Minute)
					cancel()
					if err == nil {
						break
					}
					if reservation.CodeOf(err) != reservation.CodeUnavailable {
						e.Errorf("a buyer met: %v", err)
						return
					}
				}
			}
		})
	}
	return func() { stop(); wg.Wait() }
}

// kill and flip wait a moment for a replica, say whether it has what they wrote, and do not hang for one that stands
// still.
func TestKillAndFlipTellOfALaggingReplica(t *testing.T) {
	t.Parallel()
	stack := devtest.Private(t, devstack.Options{MySQL: true, Redis: true})
	set, err := stack.AddSentinelSet(t.Context(), devstack.SentinelOptions{DownAfter: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	e := newElsewhere(t, stack, set.URL(0))
	e.open(10)
	const waived = "latency,evidence,drill,pool,queue,cooldown"
	flip := func() result {
		return e.command("flip", "pod-1", "--to", "handover", "--execute", "--reason", "test", "--waive", waived)
	}
	kill := func() result { return e.command("kill", "pod-1", "--reason", "test") }
	rearm := func() {
		if res := e.command("rearm", "pod-1", "--execute", "--waive", "cooldown", "--reason", "test"); res.code != 0 {
			t.Fatal(res)
		}
	}
	says := func(res result, want string) {
		t.Helper()
		if res.code != 0 || !strings.Contains(res.out, want) || res.took > 30*time.Second {
			t.Errorf("want %q: %s", want, res)
		}
	}
	says(flip(), "replicas: 1 of 1 have it")
	says(kill(), "replicas: 1 of 1 have it")
	rearm()
	if err := set.Replicas[0].Pause(); err != nil {
		t.Fatal(err)
	}
	says(flip(), "replicas: 0 of 1 have it")
	says(kill(), "replicas: 0 of 1 have it")
	if err := set.Replicas[0].Resume(); err != nil {
		t.Fatal(err)
	}
	res := e.command("doctor", "--format", "json")
	var answer struct {
		Findings []struct{ Store, Check, Result, Found string } `json:"findings"`
	}
	if err := json.Unmarshal([]byte(res.out), &answer); err != nil {
		t.Fatalf("%v: %s", err, res)
	}
	seen := map[string]bool{}
	for _, f := range answer.Findings {
		if f.Store == "redis" && f.Check == "appendonly" {
			addr, _, _ := strings.Cut(f.Found, ": ")
			seen[addr] = true
		}
	}
	if !seen[set.Primary.Addr()] || !seen[set.Replicas[0].Addr()] {
		t.Errorf("doctor does not look at both servers: %s", res)
	}
}
