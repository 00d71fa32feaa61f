package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/config"
	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/reservation"
)

// operator is an on-call with a running pod: fences in shadow, and a router that beats.
type operator struct {
	*client
	stack *devstack.Stack
	raw   *redis.Client
	pod   *podset.Pod
}

func newOperator(t *testing.T) *operator {
	t.Helper()
	c, stack := newClient(t)
	cfg, err := config.LoadEnv(c.config, func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	opt, err := redis.ParseURL(stack.Redis.URL(0))
	if err != nil {
		t.Fatal(err)
	}
	o := &operator{client: c, stack: stack, raw: redis.NewClient(opt)}
	t.Cleanup(func() { _ = o.raw.Close() })
	for _, pc := range cfg.Pods {
		p, err := podset.OpenStores(t.Context(), cfg, pc)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			_ = p.Close(ctx)
		})
		first := reservation.Stamp{Epoch: 1, Stage: reservation.Shadow}
		if _, err := p.MySQL.InitFence(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Redis.InitFence(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		if o.pod == nil {
			o.pod = p
		}
	}
	return o
}

// beat is a router that has acknowledged what there is.
func (o *operator) beat() {
	o.t.Helper()
	f, err := o.pod.Redis.ReadFence(o.t.Context())
	if err == nil {
		_, err = o.pod.Redis.Beat(o.t.Context(), reservation.Heartbeat{Router: "r1", Stamp: f.Stamp, Breaker: "closed"})
	}
	if err != nil {
		o.t.Fatal(err)
	}
}

func (o *operator) status() map[string]any {
	o.t.Helper()
	return o.json(exitDone, "status", "pod-1")["pods"].([]any)[0].(map[string]any)
}

// everyGate is what a pod without traffic has to waive.
var everyGate = []string{"--waive", "queue,breaker,evidence,latency,drill,cooldown", "--reason", "no traffic here"}

func TestFlipKillAndRearmByHand(t *testing.T) {
	o := newOperator(t)
	s := o.status()
	o.want(s, "stage", "shadow", "epoch", 1.0, "truth", "redis", "killed", false, "view_complete", true)

	// No traffic is inconclusive, never pass.
	plan := o.json(exitRefused, "flip", "pod-1", "--to", "cutover")
	o.want(plan, "go", false, "from", "shadow", "to", "cutover")
	if steps := plan["steps"].([]any); len(steps) != 2 {
		t.Errorf("%v", plan)
	}
	o.fails(exitRefused, "never waived", "flip", "pod-1", "--to", "handover", "--execute", "--waive", "debt", "--reason", "r")
	o.fails(exitRefused, "a waiver needs a reason", "flip", "pod-1", "--to", "handover", "--execute", "--waive", "queue")
	o.fails(exitRefused, "max_stage is cutover", "flip", "pod-1", "--to", "complete", "--execute")
	o.want(o.status(), "stage", "shadow", "epoch", 1.0)

	o.want(o.json(exitDone, append([]string{"flip", "pod-1", "--to", "cutover"}, everyGate...)...), "go", true)
	flipped := o.json(exitDone, append([]string{"flip", "pod-1", "--to", "cutover", "--execute"}, everyGate...)...)
	o.want(flipped, "stage", "cutover", "epoch", 3.0)
	if moves := flipped["moves"].([]any); len(moves) != 2 {
		t.Errorf("%v", flipped)
	}
	o.want(o.status(), "stage", "cutover", "truth", "mysql")

	killed := o.json(exitDone, "kill", "pod-1", "--reason", "oversell")
	o.want(killed, "pod", "pod-1", "epoch", 4.0, "acks", 0.0, "routers", 0.0)
	if _, ok := killed["took_ms"].(float64); !ok || killed["debt"] == nil {
		t.Errorf("%v", killed)
	}
	o.want(o.json(exitDone, "kill", "pod-1", "--reason", "again"), "epoch", 4.0, "already", true)
	o.want(o.status(), "stage", "shadow", "killed", true, "latch", "oversell")
	o.fails(exitRefused, "the pod is killed: oversell", append([]string{"flip", "pod-1", "--to", "handover", "--execute"}, everyGate...)...)

	o.json(exitRefused, "rearm", "pod-1", "--execute")
	o.want(o.json(exitDone, "rearm", "pod-1", "--waive", "cooldown", "--reason", "a mistake"), "done", false, "killed", true)
	o.want(o.json(exitDone, "rearm", "pod-1", "--execute", "--waive", "cooldown", "--reason", "a mistake"), "done", true, "killed", false, "epoch", 5.0)
	o.fails(exitRefused, "it is not killed", "rearm", "pod-1", "--execute")

	var actions []string
	for _, r := range o.json(exitDone, "audit", "pod-1")["records"].([]any) {
		rec := r.(map[string]any)
		after := rec["after"].(map[string]any)
		actions = append(actions, fmt.Sprintf("%s %v %v", rec["action"], after["epoch"], after["stage"]))
	}
	want := []string{"flip 2 handover", "flip 3 cutover", "kill 4 shadow", "kill 4 shadow", "rearm 5 shadow"}
	if !slices.Equal(actions, want) {
		t.Errorf("the audit says %q, want %q", actions, want)
	}
}

func TestDrillAndBrakesByHand(t *testing.T) {
	o := newOperator(t)
	o.fails(exitRefused, "no router", "drill", "pod-1")
	o.beat()
	// The router of this test does not live: it does not acknowledge the rearm, and the drill says so.
	res := runCLI(t, "drill", "pod-1", "--config", o.config, "--format", "json", "--reason", "release")
	var drilled map[string]any
	if err := json.Unmarshal([]byte(res.out), &drilled); err != nil || res.code != exitRefused || !strings.Contains(res.err, "did not acknowledge") {
		t.Fatalf("exit %d: %s%s", res.code, res.out, res.err)
	}
	o.want(drilled, "stage", "shadow", "routers", 1.0, "acks", 0.0, "epoch", 2.0)

	frozen := o.json(exitDone, "freeze", "pod-1", "--reason", "why")
	if fmt.Sprint(frozen["reached"]) != "[redis mysql]" {
		t.Errorf("%v", frozen)
	}
	o.want(o.status(), "frozen", true)
	o.fails(exitFailed, "unknown bucket 1:2:3", "freeze", "pod-1", "--bucket", "1:2:3", "--reason", "why")
	o.fails(exitFailed, "is not one of pod pod-1", "freeze", "pod-1", "--bucket", "999999999:2:3", "--reason", "why")
	if _, _, err := o.pod.MySQL.Stock(o.t.Context(), reservation.Stamp{Epoch: 2, Stage: reservation.Shadow}, []reservation.Stocking{{Bucket: reservation.Bucket{Shop: 1, Item: 2, Group: 3}, Quantity: 1}}); err != nil {
		t.Fatal(err)
	}
	o.json(exitDone, "freeze", "pod-1", "--bucket", "1:2:3", "--reason", "why")
	o.json(exitDone, "unfreeze", "pod-1")
	s := o.status()
	o.want(s, "frozen", false)
	if fmt.Sprint(s["frozen_buckets"]) != "[1:2:3]" {
		t.Errorf("%v", s)
	}
	o.fails(exitFailed, "is not SHOP:ITEM:GROUP", "freeze", "pod-1", "--bucket", "1:2")
	o.fails(exitFailed, "is not SHOP:ITEM:GROUP", "freeze", "pod-1", "--bucket", "1:2:0")
}

// kill --all goes on after a failure; with MySQL gone it kills all the same; with Redis gone it says what is left to do.
func TestKillAllByHand(t *testing.T) {
	o := newOperator(t)
	for _, args := range [][]string{{"kill", "pod-9"}, {"flip", "pod-9", "--to", "shadow"}, {"status", "pod-9"}, {"freeze", "pod-9"}} {
		o.fails(exitFailed, `there is no pod "pod-9"`, args...)
	}
	o.fails(exitFailed, "name one POD, or --all", "kill")
	o.fails(exitFailed, "name one POD, or --all", "kill", "--all", "pod-1")
	if err := o.stack.MySQL.Kill(); err != nil {
		t.Fatal(err)
	}
	// pod-2 is in legacy: that is no failure.
	if err := o.raw.HSet(t.Context(), "{pod-2}:fence", "stage", "legacy").Err(); err != nil {
		t.Fatal(err)
	}
	all := o.json(exitDone, "kill", "--all", "--reason", "MySQL is on fire")["pods"].([]any)
	o.want(all[0].(map[string]any), "pod", "pod-1", "outcome", "killed", "epoch", 1.0, "debt", nil)
	o.want(all[1].(map[string]any), "pod", "pod-2", "outcome", "not applicable")
	o.fails(exitRefused, "legacy", "kill", "pod-2", "--reason", "r")
	// A pod whose fence is broken fails, the other is killed.
	if err := o.raw.Del(t.Context(), "{pod-2}:fence").Err(); err != nil {
		t.Fatal(err)
	}
	all = o.json(exitFailed, "kill", "--all")["pods"].([]any)
	o.want(all[0].(map[string]any), "outcome", "killed", "already", true)
	o.want(all[1].(map[string]any), "outcome", "failed")
	s := o.status()
	o.want(s, "killed", true, "stage", "shadow", "debt", nil)

	if err := o.stack.Redis.Kill(); err != nil {
		t.Fatal(err)
	}
	o.fails(exitFailed, "a kill flees to Redis", "kill", "pod-1", "--reason", "r")
	o.fails(exitFailed, "reached no store", "freeze", "pod-1", "--reason", "r")
	o.fails(exitFailed, "no audit could be read", "audit", "pod-1")
	res := runCLI(t, "status", "pod-1", "--config", o.config)
	if res.code != exitFailed || !strings.Contains(res.err, "neither store could be asked") {
		t.Errorf("exit %d: %s", res.code, res.err)
	}
	contains(t, "status", res.out, []string{"unknown"})
}

// What a tired person reads.
func TestTextOfTheControls(t *testing.T) {
	o := newOperator(t)
	o.beat()
	say := func(code int, want []string, args ...string) {
		t.Helper()
		res := runCLI(t, append(args, "--config", o.config)...)
		if res.code != code {
			t.Errorf("%v: exit %d, want %d\n%s%s", args, res.code, code, res.out, res.err)
		}
		contains(t, strings.Join(args, " "), res.out, want)
	}
	say(exitDone, []string{"POD", "STAGE", "pod-1", "shadow", "complete", "router   r1: epoch 1"}, "status")
	say(exitRefused, []string{"pod-1: shadow (epoch 1) -> cutover", "shadow -> handover", "evidence", "INCONCLUSIVE", "0 compared", "wait for traffic", "awaited"}, append([]string{"flip", "pod-1", "--to", "cutover", "--waive", "drill"}, "--reason", "r")...)
	say(exitDone, []string{"shadow -> handover, epoch 2", "waived: evidence, latency", "pod-1 is in handover, epoch 2"}, append([]string{"flip", "pod-1", "--to", "handover", "--execute"}, everyGate...)...)
	say(exitDone, []string{"pod-1 KILLED: shadow, epoch 3 (it was in handover)", "NOT YET: r1", "debt:     none", "twinhold rearm pod-1 --execute"}, "kill", "pod-1")
	say(exitDone, []string{"! killed: no reason given", "! router r1 is still at epoch 1"}, "status", "pod-1")
	say(exitRefused, []string{"cooldown", "FAIL"}, "rearm", "pod-1")
	say(exitDone, []string{"ACTION", "flip", "kill", "no reason given"}, "audit")
	say(exitDone, []string{"would be rebuilt, and be at epoch 4, shadow", "add --execute"}, "reseed", "pod-1")
	say(exitDone, []string{"pod-1 is FROZEN in redis and mysql"}, "freeze", "pod-1")
}
