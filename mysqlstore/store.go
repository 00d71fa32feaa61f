package mysqlstore

import (
	"context"
	"database/sql"

	"golang.org/x/sync/singleflight"

	"github.com/twinhold/twinhold/reservation"
)

// Store is a pod's inventory in MySQL. It is safe for concurrent use.
type Store struct {
	opts    Options
	db      *sql.DB
	metrics *metrics
	refills singleflight.Group // by bucket
}

var (
	_ reservation.Store     = (*Store)(nil)
	_ reservation.Ledger    = (*Store)(nil)
	_ reservation.Mirror    = (*Store)(nil)
	_ reservation.Walker    = (*Store)(nil)
	_ reservation.Stocker   = (*Store)(nil)
	_ reservation.Fencer    = (*Store)(nil)
	_ reservation.Inspector = (*Store)(nil)
)

// Open opens a pod's schema and checks that it answers and that it has been migrated. A server that does not answer
// is an *UnavailableError.
func Open(ctx context.Context, o Options) (*Store, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	db, err := OpenDB(o.DSN, o)
	if err != nil {
		return nil, err
	}
	s := &Store{opts: o, db: db}
	if err := s.checkSchema(ctx); err != nil {
		_ = db.Close()
		return nil, err
	}
	s.metrics = newMetrics(o.Registerer, o.Pod)
	return s, nil
}

// DB is the store's pool of connections, with its settings, for others that keep their tables in the pod's schema.
func (s *Store) DB() *sql.DB { return s.db }

// Close closes the connections. Operations that are under way fail; their outcome may be unknown.
func (s *Store) Close() error { return s.db.Close() }
