package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// ShopRange is a range of shop ids, both ends included.
type ShopRange struct{ From, To int64 }

// Router carries operations to their pods. Its methods are safe for concurrent use.
type Router struct{ table atomic.Pointer[table] }

// table says which shops are whose.
type table struct {
	pods   []*Pod
	ranges []podRange // sorted by From, not overlapping
}

type podRange struct {
	ShopRange
	pod *Pod
}

// New makes a router over pods whose shops do not overlap.
func New(pods ...*Pod) (*Router, error) {
	r := &Router{}
	return r, r.SetPods(pods...)
}

// SetPods replaces the pods. Operations that are under way in one that is left out go on there.
func (r *Router) SetPods(pods ...*Pod) error {
	t := &table{pods: pods}
	for _, p := range pods {
		for _, s := range p.opt.Shops {
			t.ranges = append(t.ranges, podRange{s, p})
		}
	}
	if err := t.sort(); err != nil {
		return err
	}
	r.table.Store(t)
	return nil
}

func (r *table) sort() error {
	slices.SortFunc(r.ranges, func(a, b podRange) int { return cmp.Compare(a.From, b.From) })
	for i := 1; i < len(r.ranges); i++ {
		a, b := r.ranges[i-1], r.ranges[i]
		if b.From <= a.To {
			return fmt.Errorf("shops %d-%d of pod %s and %d-%d of pod %s overlap", a.From, a.To, a.pod.opt.ID, b.From, b.To, b.pod.opt.ID)
		}
	}
	return nil
}

// Pods gives the router's pods.
func (r *Router) Pods() []*Pod { return slices.Clone(r.table.Load().pods) }

// PodOf finds the pod of a shop.
func (r *Router) PodOf(shop int64) (*Pod, error) {
	ranges := r.table.Load().ranges
	i, ok := slices.BinarySearchFunc(ranges, shop, func(p podRange, shop int64) int {
		switch {
		case shop < p.From:
			return 1
		case shop > p.To:
			return -1
		default:
			return 0
		}
	})
	if !ok {
		return nil, &reservation.InvalidError{
			Field: "shopId", Reason: fmt.Sprintf("%d belongs to no pod: add it to a pod's shops in the configuration", shop),
		}
	}
	return ranges[i].pod, nil
}

// Reserve places a hold. A zero ttl takes the configured default.
func (r *Router) Reserve(ctx context.Context, shop int64, key string, lines []reservation.Line, ttl time.Duration) (reservation.Result, error) {
	p, err := r.PodOf(shop)
	if err != nil {
		return reservation.Result{}, err
	}
	return p.Reserve(ctx, shop, key, lines, ttl)
}

// Claim makes a reservation's deduction permanent.
func (r *Router) Claim(ctx context.Context, shop int64, id reservation.ID) (reservation.ClaimResult, error) {
	p, err := r.PodOf(shop)
	if err != nil {
		return reservation.ClaimResult{}, err
	}
	return p.Claim(ctx, shop, id)
}

// Release gives a reservation up.
func (r *Router) Release(ctx context.Context, shop int64, id reservation.ID) (reservation.ReleaseResult, error) {
	p, err := r.PodOf(shop)
	if err != nil {
		return reservation.ReleaseResult{}, err
	}
	return p.Release(ctx, shop, id)
}

// Adjust changes a bucket's stock.
func (r *Router) Adjust(ctx context.Context, adj reservation.Adjustment) (reservation.AdjustResult, error) {
	p, err := r.PodOf(adj.Bucket.Shop)
	if err != nil {
		return reservation.AdjustResult{}, err
	}
	return p.Adjust(ctx, adj)
}

// Get reads a reservation from the truth.
func (r *Router) Get(ctx context.Context, shop int64, id reservation.ID) (reservation.Record, error) {
	p, err := r.PodOf(shop)
	if err != nil {
		return reservation.Record{}, err
	}
	return p.Get(ctx, shop, id)
}

// Availability reads a bucket from the truth.
func (r *Router) Availability(ctx context.Context, b reservation.Bucket) (reservation.Availability, error) {
	p, err := r.PodOf(b.Shop)
	if err != nil {
		return reservation.Availability{}, err
	}
	return p.Availability(ctx, b)
}

// Start starts every pod's background work.
func (r *Router) Start() {
	for _, p := range r.Pods() {
		p.Start()
	}
}

// Close stops every pod: what was taken is carried to the mirrors until the context ends, the rest becomes gaps.
func (r *Router) Close(ctx context.Context) error {
	errs := []error{}
	for _, p := range r.Pods() {
		errs = append(errs, p.Close(ctx))
	}
	return errors.Join(errs...)
}
