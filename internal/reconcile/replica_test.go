package reconcile

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
)

// pair is a primary and a replica of it, two real servers.
type pair struct {
	*bench
	stack   *devstack.Stack
	server  *devstack.MySQL // the replica
	replica *bench          // for statements by hand only
	r       *Reconciler
}

func newPair(t *testing.T) *pair {
	t.Helper()
	stack := devtest.Private(t, devstack.Options{MySQL: true, MySQLArgs: volatile()})
	second, err := stack.AddMySQL(t.Context(), append(volatile(), "--server-id=2", "--skip-replica-start")...)
	if err != nil {
		t.Fatal(err)
	}
	admin := openDB(t, stack.MySQL.DSN("mysql"))
	var file, ignored any
	var at int64
	if err := admin.QueryRowContext(t.Context(), "/* conn_tag:test */ SHOW BINARY LOG STATUS").Scan(&file, &at, &ignored, &ignored, &ignored); err != nil {
		t.Fatal(err)
	}
	there := &bench{t: t, db: openDB(t, second.DSN("mysql"))}
	host, port, _ := strings.Cut(stack.MySQL.Addr(), ":")
	there.hand(fmt.Sprintf(`CHANGE REPLICATION SOURCE TO SOURCE_HOST = '%s', SOURCE_PORT = %s, SOURCE_USER = 'root', SOURCE_PASSWORD = '',
SOURCE_LOG_FILE = '%s', SOURCE_LOG_POS = %d, SOURCE_CONNECT_RETRY = 1`, host, port, file, at), "START REPLICA")
	dsn := devtest.SchemaOn(t, stack.MySQL)
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{bench: newBench(t, dsn), stack: stack, server: second, replica: there}
	p.stock(3, 100)
	replica := openDB(t, second.DSN(c.DBName))
	p.r = p.reconciler(func(o *Options) {
		o.Replica, o.HoldGrace, o.MaxLag, o.PageTimeout = replica, 500*time.Millisecond, time.Minute, 3*time.Second
	})
	p.follows()
	return p
}

// follows waits until the replica has all that the primary has.
func (p *pair) follows() {
	p.t.Helper()
	p.n++
	mark := fmt.Sprintf("CREATE TABLE follows_%d (n INT)", p.n)
	p.hand(mark)
	c, err := mysql.ParseDSN(p.dsn())
	if err != nil {
		p.t.Fatal(err)
	}
	devtest.UntilWithin(p.t, 20*time.Second, "the replica follows", func() bool {
		var n int
		err := p.replica.db.QueryRowContext(p.t.Context(), "/* conn_tag:test */ SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = ? AND table_name = ?",
			c.DBName, fmt.Sprintf("follows_%d", p.n)).Scan(&n)
		return err == nil && n == 1
	})
}

func (p *pair) dsn() string {
	var name string
	if err := p.db.QueryRowContext(p.t.Context(), "/* conn_tag:test */ SELECT DATABASE()").Scan(&name); err != nil {
		p.t.Fatal(err)
	}
	return p.stack.MySQL.DSN(name)
}

// read runs one round that must read there.
func (p *pair) read(from Source, note string) Round {
	p.t.Helper()
	got := round(p.t, p.r)
	if got.Source != from || !strings.Contains(strings.Join(got.Notes, "; "), note) {
		p.t.Fatalf("read the %s, notes %q; want the %s and %q", got.Source, got.Notes, from, note)
	}
	return got
}

// TestAReplicaThatLagsIsNoFault plays one night of a replica: it follows, it stops, it comes back, it is slow, it hangs.
func TestAReplicaThatLagsIsNoFault(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	overdue := p.hold(time.Second, line(1, 2))
	p.hold(time.Minute, line(2, 2))
	p.hand("UPDATE inventory_ledger SET unpooled = unpooled + 1 WHERE " + ofBucket(bucket(3)))
	p.follows()

	// It follows: a fault is found on it, and confirmed.
	if got := p.read(Replica, ""); checks(got.Findings) != string(I2) || got.Lag > 10*time.Second || got.Unconfirmed != 0 {
		t.Fatalf("a replica that follows: %+v", got)
	}

	// It stops, and the primary goes on: the fault is mended, the hold ends. The replica shows both as they were.
	p.replica.hand("STOP REPLICA SQL_THREAD")
	p.hand("UPDATE inventory_ledger SET unpooled = unpooled - 1 WHERE " + ofBucket(bucket(3)))
	if _, err := p.Release(t.Context(), p.st, shop, overdue); err != nil {
		t.Fatal(err)
	}
	devtest.Until(t, "the hold is overdue by the replica's clock", func() bool { return p.overdueOnReplica() })
	for range 4 {
		got := p.read(Replica, "has stopped following")
		if len(got.Findings) != 0 || got.Unconfirmed != 2 {
			t.Fatalf("a replica that has stopped: %+v", got)
		}
	}

	// It lacks a reservation: it is as far behind as that is old. Holds are given that time too.
	p.hold(time.Minute, line(1, 1))
	p.hand("UPDATE reservations SET created_at = created_at - INTERVAL 20 SECOND ORDER BY id DESC LIMIT 1")
	if got := p.read(Replica, ""); got.Lag < 20*time.Second || got.Lag > 50*time.Second || got.Unconfirmed != 1 || len(got.Findings) != 0 {
		t.Fatalf("a replica that is behind: %+v", got)
	}
	p.hand("UPDATE reservations SET created_at = created_at - INTERVAL 10 MINUTE ORDER BY id DESC LIMIT 1")
	if got := p.read(Primary, "behind, more than 1m0s"); got.Lag < 10*time.Minute || len(got.Findings) != 0 {
		t.Fatalf("a replica that is too far behind: %+v", got)
	}

	// It comes back, and then runs with a delay of its own.
	p.replica.hand("START REPLICA SQL_THREAD")
	p.follows()
	devtest.Until(t, "the replica says that it is back", func() bool {
		got := p.read(Replica, "")
		if len(got.Findings) != 0 || got.Unconfirmed != 0 {
			t.Fatalf("a replica that is back: %+v", got)
		}
		return got.Lag < 2*time.Second
	})
	p.replica.hand("STOP REPLICA SQL_THREAD", "CHANGE REPLICATION SOURCE TO SOURCE_DELAY = 600", "START REPLICA SQL_THREAD")
	p.hold(time.Minute, line(1, 1))
	devtest.Until(t, "a second has passed for the replica", func() bool { return p.read(Replica, "").Lag > time.Second })

	// What lasts on the primary lasts, whichever of the two is read.
	p.hand("DELETE FROM reservation_units WHERE " + ofBucket(bucket(2)) + " LIMIT 1")
	p.replica.hand("STOP REPLICA SQL_THREAD", "CHANGE REPLICATION SOURCE TO SOURCE_DELAY = 0", "START REPLICA SQL_THREAD")
	p.follows()
	p.read(Replica, "")
	if err := p.server.Pause(); err != nil {
		t.Fatal(err)
	}
	p.read(Primary, "the replica could not be read")
	if err := p.server.Kill(); err != nil {
		t.Fatal(err)
	}
	if got := p.read(Primary, "the replica could not be read"); checks(got.Lasting()) != string(I2) || len(got.Findings) != 1 {
		t.Fatalf("after three rounds: %+v", got.Findings)
	}
}

func (p *pair) overdueOnReplica() bool {
	src := &source{db: p.r.opts.Replica, name: Replica, timeout: 5 * time.Second}
	found := false
	err := p.r.walkOne(p.t.Context(), src, p.r.walks()[4], &Counts{}, func(s suspect) { found = found || s.Check == HoldOverdue })
	if err != nil {
		p.t.Fatal(err)
	}
	return found
}

// A primary that does not answer is an error and not a finding, also while the replica does.
func TestAPrimaryThatDoesNotAnswerIsAnError(t *testing.T) {
	t.Parallel()
	b := newBench(t, devtest.Schema(t))
	gone := openDB(t, "root@tcp(127.0.0.1:1)/none")
	for name, o := range map[string]Options{"alone": {Primary: gone}, "beside a replica": {Primary: gone, Replica: b.db}} {
		o.Pod = "pod-1"
		r, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_, err = r.Round(ctx)
		cancel()
		if err == nil || !strings.Contains(err.Error(), "pod-1") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
