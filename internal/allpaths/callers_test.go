package allpaths

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// job is what one process of callers does.
type job struct {
	DSN     string        `json:"dsn"`
	Process int           `json:"process"`
	Callers int           `json:"callers"`
	Buckets int           `json:"buckets"`
	For     time.Duration `json:"for"`
}

// told is what its callers were told, by what it was, and what the store counted meanwhile.
type told struct {
	Said    map[string]int     `json:"said"`
	Errors  []string           `json:"errors"`
	Retries map[string]float64 `json:"retries"`
}

var stamp = reservation.Stamp{Epoch: 1, Stage: reservation.Complete}

const shop = 7

func storeOptions(dsn string, r prometheus.Registerer) mysqlstore.Options {
	return mysqlstore.Options{DSN: dsn, Pod: "pod-1", Retention: time.Second, PoolSize: 200, WriteTimeout: 3 * time.Second, Registerer: r}
}

// callers are one process of them.
type callers struct {
	job
	s *mysqlstore.Store

	mu   sync.Mutex
	told told
}

// work runs the callers and the sweeps of one process, and prints what they were told.
func work(spec string) error {
	c := &callers{told: told{Said: map[string]int{}, Retries: map[string]float64{}}}
	if err := json.Unmarshal([]byte(spec), &c.job); err != nil {
		return err
	}
	reg := prometheus.NewRegistry()
	var err error
	if c.s, err = mysqlstore.Open(context.Background(), storeOptions(c.DSN, reg)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.For)
	defer cancel()
	var all sync.WaitGroup
	for n := range c.Callers {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(c.Process), uint64(n)))
			for k := 0; ctx.Err() == nil; k++ {
				c.buy(r, fmt.Sprintf("%d-%d-%d", c.Process, n, k))
			}
		})
	}
	all.Go(func() { c.sweeps(ctx) })
	all.Wait()
	c.retries(reg)
	if err := c.s.Close(); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(c.told)
}

// within bounds one call.
const within = 30 * time.Second

// buy is one buyer: a cart of one to three buckets, and then it pays, gives up, forgets, or the stock is counted.
func (c *callers) buy(r *rand.Rand, key string) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	var lines []reservation.Line
	for range 1 + r.IntN(3) {
		lines = append(lines, reservation.Line{Item: 1 + r.Int64N(int64(c.Buckets)), Group: 1, Quantity: 1 + r.Int64N(3)})
	}
	req, err := reservation.NewRequest(shop, key, lines, 300*time.Millisecond+time.Duration(r.IntN(1000))*time.Millisecond, reservation.Limits{MinTTL: time.Millisecond, MaxTTL: time.Hour})
	if err != nil {
		c.note("request", err)
		return
	}
	id, err := reservation.NewID()
	if err != nil {
		c.note("id", err)
		return
	}
	res, err := c.s.Reserve(ctx, stamp, id, req)
	c.note("reserve "+res.Record.Outcome.String(), err)
	if err != nil || res.Record.Outcome != reservation.Granted {
		c.adjust(ctx, r, key)
		return
	}
	switch r.IntN(4) {
	case 0, 1:
		claimed, err := c.s.Claim(ctx, stamp, shop, id)
		c.note("claim "+claimed.Record.State.String(), err)
	case 2:
		_, err := c.s.Release(ctx, stamp, shop, id)
		c.note("release", err)
	default:
		c.note("forgotten", nil)
	}
}

// adjust receives or writes off a little.
func (c *callers) adjust(ctx context.Context, r *rand.Rand, id string) {
	adj := reservation.Adjustment{ID: id, Bucket: reservation.Bucket{Shop: shop, Item: 1 + r.Int64N(int64(c.Buckets)), Group: 1}, Delta: 1 + r.Int64N(20)}
	if r.IntN(5) == 0 {
		adj.Delta = -1
	}
	_, err := c.s.Adjust(ctx, stamp, adj)
	c.note("adjust", err)
}

// sweeps ends what is due and purges, all the time.
func (c *callers) sweeps(ctx context.Context) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		res, err := c.s.Sweep(context.WithoutCancel(ctx), stamp, 100)
		c.note("sweep", err)
		c.mu.Lock()
		c.told.Said["expired"] += len(res.Expired)
		c.told.Said["purged"] += res.Purged
		c.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// note counts an answer. A decision of the domain is one; anything else is an error that a caller has seen.
func (c *callers) note(what string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.told.Said[what]++
	case reservation.DecisionOf(err) != reservation.Undecided, errors.Is(err, reservation.ErrNotFound):
		c.told.Said[what+": "+reservation.DecisionOf(err).String()]++
	default:
		c.told.Errors = append(c.told.Errors, what+": "+err.Error())
	}
}

// retries notes what the store retried, by reason.
func (c *callers) retries(reg *prometheus.Registry) {
	families, err := reg.Gather()
	if err != nil {
		c.note("metrics", err)
	}
	for _, f := range families {
		switch f.GetName() {
		case "twinhold_mysql_retries_total", "twinhold_mysql_lane_apart_total", "twinhold_mysql_refills_total":
			for _, m := range f.GetMetric() {
				name := f.GetName()
				for _, l := range m.GetLabel() {
					if l.GetName() != "pod" {
						name += " " + l.GetValue()
					}
				}
				c.told.Retries[name] += m.GetCounter().GetValue()
			}
		}
	}
}
