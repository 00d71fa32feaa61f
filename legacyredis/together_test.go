package legacyredis_test

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/legacyredis"
	"github.com/twinhold/twinhold/reservation"
)

// Sweepers, releases and late claims at once: every hold ends once, and each expiry is reported once.
func TestEndsAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stock(1000)
	var ids []reservation.ID
	for i := range 300 {
		id := r.reserve(fmt.Sprint(i), line(1, 1)).Record.ID
		r.expireNow(id)
		ids = append(ids, id)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	expired, released := map[reservation.ID]int{}, map[reservation.ID]int{}
	for range 4 {
		wg.Go(func() {
			for {
				res, err := r.store.Sweep(ctx, stamp(), 50)
				if err != nil {
					t.Errorf("sweep: %v", err)
					return
				}
				mu.Lock()
				for _, rec := range res.Expired {
					expired[rec.ID]++
				}
				mu.Unlock()
				if !res.More {
					return
				}
			}
		})
	}
	for part := range 4 {
		wg.Go(func() {
			for i := part; i < len(ids); i += 4 {
				res, err := r.store.Release(ctx, stamp(), 1, ids[i])
				if err != nil {
					t.Errorf("release: %v", err)
					return
				}
				if !res.WasExpired {
					mu.Lock()
					released[ids[i]]++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		if expired[id]+released[id] != 1 {
			t.Fatalf("%s: expired %d times, released %d times", id, expired[id], released[id])
		}
	}
	r.figures(1, 1000, 0, 1000)
	r.noOrphans()
}

// Ten processes start at once: there is one fence, and all of them get it.
func TestFenceIsCreatedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if err := r.raw.Del(t.Context(), r.key("fence")).Err(); err != nil {
		t.Fatal(err)
	}
	fences := make(chan reservation.Fence, 10)
	for i := range 10 {
		go func() {
			f, err := r.store.InitFence(t.Context(), reservation.Stamp{Epoch: uint64(i + 1), Stage: reservation.Legacy})
			if err != nil {
				t.Errorf("init: %v", err)
			}
			fences <- f
		}()
	}
	first := <-fences
	for range 9 {
		if f := <-fences; !reflect.DeepEqual(f, first) {
			t.Fatalf("%+v and %+v", f, first)
		}
	}
	if f, err := r.store.ReadFence(t.Context()); err != nil || !reflect.DeepEqual(f, first) || f.Stage != reservation.Legacy {
		t.Fatalf("%+v, %v", f, err)
	}
}

// Two pods of one process share a registry.
func TestMetricsOfTwoPods(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewPedanticRegistry()
	for range 2 {
		r := newRig(t, func(o *legacyredis.Options) { o.Registerer = reg })
		r.stock(1)
		r.reserve("k", line(1, 1))
	}
	got, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range got {
		if f.GetName() == "twinhold_redis_replies_total" {
			pods := map[string]bool{}
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					if l.GetName() == "pod" {
						pods[l.GetValue()] = true
					}
				}
			}
			if len(pods) != 2 {
				t.Fatalf("pods %v", pods)
			}
			return
		}
	}
	t.Fatal("no replies were counted")
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	good := legacyredis.Options{Pod: "p", Client: podClient(t, "redis://127.0.0.1:1/0", "p"), Ledger: noLedger{}}
	if _, err := legacyredis.New(good); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*legacyredis.Options){
		"no pod":             func(o *legacyredis.Options) { o.Pod = "" },
		"braces in the pod":  func(o *legacyredis.Options) { o.Pod = "a}b" },
		"no client":          func(o *legacyredis.Options) { o.Client = nil },
		"no ledger":          func(o *legacyredis.Options) { o.Ledger = nil },
		"negative retention": func(o *legacyredis.Options) { o.Retention = -1 },
		"unknown policy":     func(o *legacyredis.Options) { o.LatePolicy = 9 },
	} {
		o := good
		spoil(&o)
		if _, err := legacyredis.New(o); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}
