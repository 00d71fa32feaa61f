package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/template"

	"github.com/twinhold/twinhold/config"
	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// mirrorScheme is a whole router in one stage: what callers wait for, and what goes on behind their backs.
func mirrorScheme(name, what string, mirror bool) scheme {
	return scheme{
		name: name, what: what, both: true,
		setUp: func(ctx context.Context, p place, stock int64) (int64, error) {
			return setUpMirror(ctx, p, stock, mirror)
		},
		open: func(ctx context.Context, j Job) (session, error) { return openMirror(ctx, j, mirror) },
		read: func(ctx context.Context, p place, stock int64) (books, error) {
			return readMirror(ctx, p, stock, mirror)
		},
	}
}

// mirrorPage is the configuration of a pod with the product's defaults, but that nothing expires while it is measured.
const mirrorPage = `version: 1
data:  {listen: "127.0.0.1:0"}
admin: {listen: "127.0.0.1:0"}
defaults: {ttl: {{.TTL}}, max_ttl: {{.TTL}}}
pods:
  - {id: {{.Pod}}, shops: ["{{.Shop}}"], redis: {{.Redis}}, mysql: {{.MySQL}}, source_of_truth: redis, mirror: {{.Mirror}}, max_stage: shadow}
`

func mirrorConfig(dsn, redisURL, prefix string, mirror bool) (*config.Config, error) {
	var page bytes.Buffer
	quoted := func(s string) string { return strings.ReplaceAll(strconv.Quote(s), "${", "$${") }
	err := template.Must(template.New("twinhold.yaml").Parse(mirrorPage)).Execute(&page, map[string]any{
		"TTL": ttl, "Pod": strings.Trim(prefix, "{}"), "Shop": shop, "Redis": quoted(redisURL), "MySQL": quoted(dsn), "Mirror": mirror,
	})
	if err != nil {
		return nil, fmt.Errorf("write the configuration of the router: %w", err)
	}
	return config.Parse(page.Bytes(), "the router's configuration", func(string) (string, bool) { return "", false })
}

// mirrored is a router and its pod.
type mirrored struct {
	set *podset.Set
	pod *podset.Pod
	// paced: a call waits until the mirror's queue is half empty, so that it never overflows.
	paced bool
}

func openMirror(ctx context.Context, j Job, mirror bool) (session, error) {
	cfg, err := mirrorConfig(j.DSN, j.Redis, j.Prefix, mirror)
	if err != nil {
		return nil, err
	}
	set, err := podset.Open(ctx, cfg, podset.Options{})
	if err != nil {
		return nil, err
	}
	set.Start()
	return &mirrored{set: set, pod: set.Pods[0], paced: mirror && j.Loads[0].Rate == 0}, nil
}

func (m *mirrored) reserve(ctx context.Context, c call) (reply, error) {
	if q := m.pod.Router.Queue(); m.paced {
		if err := q.WaitBelow(ctx, q.Capacity()/2); err != nil {
			return reply{}, err
		}
	}
	res, err := m.set.Router.Reserve(ctx, shop, c.key, []reservation.Line{{Item: int64(c.bucket) + 1, Group: group, Quantity: 1}}, ttl)
	if err != nil {
		return reply{}, err
	}
	if res.Record.Outcome == reservation.Granted {
		return reply{answer: granted, replayed: res.Replayed}, nil
	}
	return reply{answer: rejected, replayed: res.Replayed}, nil
}

// close delivers what waits for the mirror, and writes the tallies.
func (m *mirrored) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanUpTimeout)
	defer cancel()
	return errors.Join(m.pod.Router.Queue().Drain(ctx), m.pod.Router.Engine().Settle(ctx), m.set.Close(ctx))
}

func setUpMirror(ctx context.Context, p place, stock int64, mirror bool) (int64, error) {
	if err := mysqlstore.Migrate(ctx, p.DSN); err != nil {
		return 0, err
	}
	s, err := openMirror(ctx, Job{DSN: p.DSN, Redis: p.Redis, Prefix: p.Prefix, Loads: []Load{{}}}, mirror)
	if err != nil {
		return 0, err
	}
	m, ok := s.(*mirrored)
	if !ok {
		return 0, errors.New("no router")
	}
	st := make([]reservation.Stocking, p.Buckets)
	for n := range st {
		st[n] = reservation.Stocking{Bucket: bucketOf(n), Quantity: stock}
	}
	_, _, err = m.pod.Stock(ctx, st)
	return 0, errors.Join(err, m.close())
}

// readMirror reads both stores at rest. A gap, a record that the mirror lacks, and books that do not balance are what
// the rate must not lead to.
func readMirror(ctx context.Context, p place, stock int64, mirror bool) (books, error) {
	cfg, err := mirrorConfig(p.DSN, p.Redis, p.Prefix, mirror)
	if err != nil {
		return books{}, err
	}
	pod, err := podset.OpenStores(ctx, cfg, cfg.Pods[0])
	if err != nil {
		return books{}, err
	}
	defer pod.Close(ctx)
	b := books{stock: stock * int64(p.Buckets), granted: -1, rejected: -1}
	for n := range p.Buckets {
		a, err := pod.Redis.Availability(ctx, bucketOf(n))
		if err != nil {
			return b, fmt.Errorf("read the counters: %w", err)
		}
		b.left, b.held = b.left+a.Available, b.held+a.Held
	}
	db, err := openRows(p.DSN, 1)
	if err != nil {
		return b, err
	}
	defer db.Close()
	var gaps, missed, inMySQL int64
	if err := db.QueryRowContext(ctx, qMirrorBooks).Scan(&gaps, &missed, &inMySQL); err != nil {
		return b, fmt.Errorf("read the mirror: %w", err)
	}
	if mirror {
		b.granted = inMySQL
	}
	if gaps > 0 || missed > 0 {
		b.broken = fmt.Sprintf("%d gaps and %d differences without an explanation: the rate was too high for this machine", gaps, missed)
	}
	return b, nil
}

// mirror measures what the mirror costs the callers: the same reserves in stage legacy and in shadow, in alternating
// pairs, at a third of the highest rate at which shadow has no gap. An open loop.
func (r *run) mirror(ctx context.Context) error {
	if len(r.entrants) != 2 {
		return errors.New("mirror needs both of its schemes")
	}
	legacy, shadow := r.entrants[0], r.entrants[1]
	r.o.Progress("finding the highest rate at which shadow has no gap")
	m, err := r.measure(ctx, shadow, reserves(shadow.callers, 0))
	if err != nil {
		return err
	}
	rate := m.loads[0].opsS / shareOfMaximum
	r.o.Rate = rate
	r.o.Progress(fmt.Sprintf("a third of it: %.0f reserves a second", rate))
	return r.takeTurns(ctx, turn{legacy, reserves(legacy.callers, rate)}, turn{shadow, reserves(shadow.callers, rate)})
}

// mirrorRounds is how many pairs there are where nobody says otherwise.
const mirrorRounds = 5

// mirrorBuckets spread the reserves, so that it is the mirror that is measured and not one bucket.
const mirrorBuckets = 100
