package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/singleflight"

	"github.com/twinhold/twinhold/reservation"
)

// Store is a pod's inventory in MySQL. It is safe for concurrent use.
type Store struct {
	opts    Options
	db      *sql.DB
	packets *sql.DB    // connections that take several statements at once; nil: none do
	reads   *lone      // db, for single statements
	budgets [2]*budget // of db, and of packets
	metrics *metrics
	lanes   lanes
	soldOut *soldOut
	drains  *drains
	recent  *recent
	clock   clock
	stuck   stuck
	// replayed is when a shared transaction last met a key that was there, in Unix nanoseconds.
	replayed atomic.Int64
	pace     *pace
	ended    told
	upkeep   singleflight.Group // refills and expiries on need, and raises of the fence, by what and stamp
	raising  chan struct{}      // holds one token: the fence's row is changed by one at a time

	life    context.Context //nolint:containedctx // ends with the store; upkeep outlives its callers' contexts
	end     context.CancelFunc
	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup // upkeep
}

var (
	_ reservation.Store      = (*Store)(nil)
	_ reservation.Ledger     = (*Store)(nil)
	_ reservation.Mirror     = (*Store)(nil)
	_ reservation.Walker     = (*Store)(nil)
	_ reservation.Stocker    = (*Store)(nil)
	_ reservation.Fencer     = (*Store)(nil)
	_ reservation.MySQLFence = (*Store)(nil)
	_ reservation.Marks      = (*Store)(nil)
	_ reservation.Agreer     = (*Store)(nil)
	_ reservation.Inspector  = (*Store)(nil)
)

// Open opens a pod's schema and checks that it answers and that it has been migrated. A server that does not answer
// is an *UnavailableError. With Options.Lazy it asks nothing.
func Open(ctx context.Context, o Options) (*Store, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	s := &Store{opts: o, raising: make(chan struct{}, 1), soldOut: newSoldOut(), drains: newDrains(), recent: newRecent()}
	s.lanes.open = map[laneKey]*lane{}
	if err := s.openPools(); err != nil {
		return nil, err
	}
	if !o.Lazy {
		if err := s.CheckSchema(ctx); err != nil {
			_ = s.closePools()
			return nil, err
		}
	}
	s.metrics = newMetrics(o.Registerer, o.Pod, s.lanes.waitingNow, newDeepest(s))
	s.pace = &pace{rate: o.SweepRate, paused: s.metrics.sweepPause, now: o.Now}
	s.life, s.end = context.WithCancel(context.WithoutCancel(ctx))
	return s, nil
}

// openPools opens the connections: for shared transactions apart from the others, since a connection that takes several
// statements at once is to carry nothing but constants of this package.
func (s *Store) openPools() (err error) {
	rest := s.opts
	if n := rest.MaxOpenConns / packetShare; n >= 2 && !rest.NoLanes && !rest.NoMultiStatements {
		share := s.opts
		share.MaxOpenConns = n
		rest.MaxOpenConns -= n
		if s.packets, err = openDB(s.opts.DSN, share, true); err != nil {
			return err
		}
	}
	if s.db, err = OpenDB(s.opts.DSN, rest); err != nil {
		return err
	}
	s.budgets = [2]*budget{newBudget(s, rest.MaxOpenConns), newBudget(s, s.opts.MaxOpenConns-rest.MaxOpenConns)}
	s.reads = &lone{DB: s.db, budget: s.budgets[0]}
	return nil
}

func (s *Store) budgetOf(db *sql.DB) *budget {
	if db == s.packets {
		return s.budgets[1]
	}
	return s.budgets[0]
}

func (s *Store) closePools() error {
	err := s.db.Close()
	if s.packets != nil {
		err = errors.Join(err, s.packets.Close())
	}
	return err
}

// DB is the store's pool of connections, with its settings, for others that keep their tables in the pod's schema.
func (s *Store) DB() *sql.DB { return s.db }

// Close ends the upkeep that is under way, waits for it, and closes the connections. Operations that are under way
// fail; their outcome may be unknown.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.end()
	s.running.Wait()
	return s.closePools()
}

// enter counts a piece of upkeep in, unless the store is closed.
func (s *Store) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.running.Add(1)
	return true
}
