// Package memstore is a reservation store in memory, with a ledger of its own: the model that the real stores are
// compared with, and a stand-in for examples that need no server.
//
// It promises to be plain: one lock, every rule of a reservation written once, in the order in which the design
// tells it. It never loses an update, but it keeps nothing when the process ends, and it is never the store of a
// pod.
package memstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Options configure a Store. Only Clock has no default.
type Options struct {
	// Clock judges expiry. Times are kept in UTC with microseconds.
	Clock func() time.Time
	// Truth is the name under which the store decides; default MySQL.
	Truth reservation.Truth
	// Late is what a late claim does when nothing is available; default ForceLate.
	Late reservation.LatePolicy
	// Retention is how long a record is kept past its expiry; default 48 h.
	Retention time.Duration
}

func (o Options) withDefaults() Options {
	if o.Truth == 0 {
		o.Truth = reservation.MySQL
	}
	if o.Late == 0 {
		o.Late = reservation.ForceLate
	}
	if o.Retention == 0 {
		o.Retention = 48 * time.Hour
	}
	return o
}

func (o Options) validate() error {
	switch {
	case o.Clock == nil:
		return errors.New("memstore: Clock is missing: pass time.Now or a clock of your own")
	case o.Truth != reservation.Redis && o.Truth != reservation.MySQL:
		return fmt.Errorf("memstore: Truth %s is not a store: use Redis or MySQL", o.Truth)
	case o.Late != reservation.ForceLate && o.Late != reservation.RefuseLate:
		return errors.New("memstore: Late is not a policy: use ForceLate or RefuseLate")
	case o.Retention < 0:
		return fmt.Errorf("memstore: Retention %v is negative", o.Retention)
	default:
		return nil
	}
}

// bucket keeps its three figures apart, as Redis does, so that available = onHand - held can fail.
type bucket struct {
	onHand, version, available, held int64
}

type shopKey struct {
	shop int64
	key  string
}

// adjusted is an adjustment that was carried out, and what it was answered.
type adjusted struct {
	adj    reservation.Adjustment
	result reservation.AdjustResult
}

// Store is the store in memory. The zero Store is not usable: call New.
type Store struct {
	opts Options

	mu      sync.Mutex
	fence   reservation.Fence
	buckets map[reservation.Bucket]*bucket
	records map[reservation.ID]*reservation.Record
	keys    map[shopKey]reservation.ID
	entries []reservation.Entry
	adjusts map[shopKey]adjusted
}

var (
	_ reservation.Store     = (*Store)(nil)
	_ reservation.Stocker   = (*Store)(nil)
	_ reservation.Inspector = (*Store)(nil)
	_ reservation.Fencer    = (*Store)(nil)
)

// New makes an empty store without a fence: give it one with InitFence before the first write.
func New(o Options) (*Store, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	return &Store{
		opts:    o,
		buckets: make(map[reservation.Bucket]*bucket),
		records: make(map[reservation.ID]*reservation.Record),
		keys:    make(map[shopKey]reservation.ID),
		adjusts: make(map[shopKey]adjusted),
	}, nil
}

func (s *Store) now() time.Time { return s.opts.Clock().UTC().Truncate(time.Microsecond) }

// enter takes the lock for a write. It gives the error for which the write must not happen.
func (s *Store) enter(ctx context.Context, st reservation.Stamp) (unlock func(), err error) {
	if ctx.Err() != nil {
		return nil, &reservation.UnavailableError{Store: s.opts.Truth, Cause: context.Cause(ctx)}
	}
	s.mu.Lock()
	if err := reservation.CheckFence(s.opts.Truth, st, s.fence); err != nil {
		s.mu.Unlock()
		return nil, err
	}
	return s.mu.Unlock, nil
}

// known gives a shop's record, unless it is past its retention.
func (s *Store) known(shop int64, id reservation.ID, now time.Time) (*reservation.Record, bool) {
	rec, ok := s.records[id]
	if !ok || rec.Shop != shop || !now.Before(rec.PurgeAt) {
		return nil, false
	}
	return rec, true
}

// take moves the record's units from available to held.
func (s *Store) take(rec *reservation.Record) {
	for _, l := range rec.Lines {
		b := s.buckets[l.Bucket(rec.Shop)]
		b.available -= l.Quantity
		b.held += l.Quantity
	}
}

// giveBack moves the record's units from held to available.
func (s *Store) giveBack(rec *reservation.Record) {
	for _, l := range rec.Lines {
		b := s.buckets[l.Bucket(rec.Shop)]
		b.available += l.Quantity
		b.held -= l.Quantity
	}
}
