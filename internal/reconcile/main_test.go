package reconcile

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// Nothing here asks what a crash leaves behind, and a busy disk should not be what the traffic waits for.
func TestMain(m *testing.M) { devtest.Main(m, devtest.Needs{MySQL: true, MySQLArgs: volatile()}) }

func volatile() []string { return []string{"--innodb-flush-log-at-trx-commit=0", "--sync-binlog=0"} }

const shop = 1

// bench is a pod's MySQL with a store that makes traffic, and a hand that plants faults.
type bench struct {
	*mysqlstore.Store
	t  *testing.T
	db *sql.DB
	st reservation.Stamp
	n  int
}

func newBench(t *testing.T, dsn string) *bench {
	t.Helper()
	if err := mysqlstore.Migrate(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	s, err := mysqlstore.Open(t.Context(), mysqlstore.Options{DSN: dsn, Pod: "pod-1", Retention: time.Hour, PoolSize: 50, WriteTimeout: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	b := &bench{Store: s, t: t, db: openDB(t, dsn), st: reservation.Stamp{Epoch: 5, Stage: reservation.Cutover}}
	if _, err := s.InitFence(t.Context(), b.st); err != nil {
		t.Fatal(err)
	}
	return b
}

func openDB(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := mysqlstore.OpenDB(dsn, mysqlstore.Options{MaxOpenConns: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func bucket(item int64) reservation.Bucket {
	return reservation.Bucket{Shop: shop, Item: item, Group: 1}
}

func line(item, quantity int64) reservation.Line {
	return reservation.Line{Item: item, Group: 1, Quantity: quantity}
}

// stock gives items 1 to n their first stock.
func (b *bench) stock(n int, quantity int64) {
	b.t.Helper()
	var list []reservation.Stocking
	for i := range n {
		list = append(list, reservation.Stocking{Bucket: bucket(int64(i + 1)), Quantity: quantity})
	}
	if _, _, err := b.Stock(b.t.Context(), b.st, list); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) hold(ttl time.Duration, lines ...reservation.Line) reservation.ID {
	b.t.Helper()
	b.n++
	id, err := reservation.NewID()
	if err != nil {
		b.t.Fatal(err)
	}
	req, err := reservation.NewRequest(shop, fmt.Sprint("key-", b.n), lines, ttl, reservation.Limits{DefaultTTL: time.Minute})
	if err != nil {
		b.t.Fatal(err)
	}
	res, err := b.Reserve(b.t.Context(), b.st, id, req)
	if err != nil || res.Record.Outcome != reservation.Granted {
		b.t.Fatalf("hold: %v %v", res.Record.Outcome, err)
	}
	return id
}

func (b *bench) claim(id reservation.ID) {
	b.t.Helper()
	if _, err := b.Claim(b.t.Context(), b.st, shop, id); err != nil {
		b.t.Fatal(err)
	}
}

// hand changes rows by hand, as no program of ours does.
func (b *bench) hand(statements ...string) {
	b.t.Helper()
	for _, q := range statements {
		if _, err := b.db.ExecContext(b.t.Context(), "/* conn_tag:test */ "+q); err != nil {
			b.t.Fatalf("%s: %v", q, err)
		}
	}
}

// reconciler makes one that reads the primary, quickly.
func (b *bench) reconciler(tune ...func(*Options)) *Reconciler {
	b.t.Helper()
	o := Options{Pod: "pod-1", Primary: b.db, PagePause: time.Microsecond}
	for _, f := range tune {
		f(&o)
	}
	r, err := New(o)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

func round(t *testing.T, r *Reconciler) Round {
	t.Helper()
	got, err := r.Round(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// checks names the findings of a round.
func checks(fs []Finding) string {
	var names []string
	for _, f := range fs {
		names = append(names, string(f.Check))
	}
	return strings.Join(slices.Compact(names), " ")
}

func closed(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}
