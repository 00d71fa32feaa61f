package legacyredis

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Store is a pod's reservations in Redis. It is safe for concurrent use. Close it, so that claims whose last step
// is under way are finished now and not by a later Sweep.
type Store struct {
	pod       string
	keys      keys
	client    *Client
	ledger    reservation.Ledger
	retention time.Duration
	late      reservation.LatePolicy
	lease     time.Duration
	log       *slog.Logger
	fail      func(string)
	scripts   scripts
	metrics   *metrics
	finisher  *finisher
}

var (
	_ reservation.Store     = (*Store)(nil)
	_ reservation.Walker    = (*Store)(nil)
	_ reservation.Fencer    = (*Store)(nil)
	_ reservation.Inspector = (*Store)(nil)

	_ reservation.RedisFence = (*Store)(nil)
	_ reservation.Confirmer  = (*Store)(nil)
	_ reservation.Mirror     = (*Store)(nil)
)

// New makes a store. It does not connect: the first operation does.
func New(o Options) (*Store, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	scr, err := loadScripts(o.Client.at.cluster)
	if err != nil {
		return nil, err
	}
	s := &Store{
		pod: o.Pod, keys: newKeys(o.Pod), client: o.Client, ledger: o.Ledger,
		retention: o.Retention.Truncate(time.Microsecond), late: o.LatePolicy, lease: o.PinLease,
		log: o.Logger.With("pod", o.Pod, "store", "redis"), fail: o.Failpoint,
		scripts: scr, metrics: newMetrics(o.Registerer, o.Pod),
	}
	s.finisher = newFinisher(s)
	return s, nil
}

// Flush waits until every claim that was answered before this call has been finished in Redis, or has been left to
// Sweep because Redis did not answer.
func (s *Store) Flush(ctx context.Context) error { return s.finisher.flush(ctx) }

// Close finishes what is under way and ends the store's goroutine. If ctx ends first, the rest is left to Sweep.
// Claims after Close are answered, and left to Sweep.
func (s *Store) Close(ctx context.Context) error { return s.finisher.close(ctx) }

// token names one call, so that a script that is sent again after a lost reply knows its own work.
func token() string { return strconv.FormatUint(rand.Uint64(), 36) }

func micros(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) }
