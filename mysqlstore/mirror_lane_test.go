package mysqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// TestMirrorLanesJudgeAlike: the same operations, in the same order, through a store whose lanes are full and through
// one that has none. Each judgement is the same, and so are the tables in the end.
func TestMirrorLanesJudgeAlike(t *testing.T) {
	t.Parallel()
	for name, st := range map[string]reservation.Stamp{"shadow": shadow, "cutover": cutover} {
		for mode, off := range map[string]bool{"packets": false, "singly": true} {
			t.Run(name+" "+mode, func(t *testing.T) {
				t.Parallel()
				p := newPairing(t, st, func(o *mysqlstore.Options) { o.NoMultiStatements = off })
				for range 4 {
					p.arrivals(14)
					p.leavings(10)
				}
				p.settled(4, "mirror_reserve", "mirror_ledger")
			})
		}
	}
}

// TestAgreeLanesJudgeAlike: grants in handover of every kind, with lanes and without.
func TestAgreeLanesJudgeAlike(t *testing.T) {
	t.Parallel()
	multi(t, func(t *testing.T, tune func(*mysqlstore.Options)) {
		p := newPairing(t, handover, tune)
		known := provisional(t, "known", time.Hour, line(1, 2))
		p.both(agreeCall(known))
		var calls []call
		for n := range 9 {
			calls = append(calls, agreeCall(provisional(t, p.key(), time.Hour, line(1, 1+int64(n)%3), line(2, 1))))
		}
		calls = append(calls, agreeCall(known), agreeCall(provisional(t, p.key(), -time.Second, line(1, 1))),
			agreeCall(provisional(t, p.key(), time.Hour, line(1, 1), line(99, 1))))
		p.together([]call{agreeCall(known), agreeCall(known)}, calls)
		calls = nil
		for range 4 {
			calls = append(calls, agreeCall(provisional(t, p.key(), time.Hour, line(1, 3), line(3, 9))))
		}
		p.together([]call{agreeCall(known), agreeCall(known)}, calls)
		p.settled(2, "agree")
	})
}

// TestDeductLanesJudgeAlike (I6): deductions while Redis decides, with lanes and without: of holds as they are here, of
// such as the truth has on other terms, late ones, and what is not held here.
func TestDeductLanesJudgeAlike(t *testing.T) {
	t.Parallel()
	multi(t, func(t *testing.T, tune func(*mysqlstore.Options)) {
		p := newPairing(t, shadow, tune)
		hold := func(ttl time.Duration) reservation.Pin {
			rec := truthRecord(t, p.key(), reservation.Held, ttl, line(1, 2), line(2, 1))
			p.both(mirrorCall(granted(rec)))
			return pinOf(rec)
		}
		var calls []call
		for n := range 8 {
			pin := hold(time.Hour)
			switch n {
			case 5:
				pin.Record.Epoch++
			case 6:
				pin.Late = true
			}
			calls = append(calls, deductCall(pin))
		}
		over := hold(time.Hour)
		for _, b := range []*bench{p.alone, p.laned.bench} { // past its expiry by MySQL's clock, and the pin says in time
			over.Record.ExpiresAt = over.Record.CreatedAt.Add(-time.Second)
			if _, err := b.DB().ExecContext(t.Context(), "UPDATE reservations SET expires_at = ? WHERE id = ?", over.Record.ExpiresAt, bytesOf(over.Record.ID)); err != nil {
				t.Fatal(err)
			}
		}
		calls = append(calls, deductCall(over), deductCall(pinOf(truthRecord(t, p.key(), reservation.Held, time.Hour, line(1, 1)))))
		p.laned.slack = 2 // the first one waits for the ledger's row, and may give up
		p.together([]call{deductCall(hold(time.Hour))}, calls)
		if p.laned.gauge("twinhold_mysql_lane_batch_members", "ledger") == 0 {
			t.Error("no deduction was shared: this shows nothing")
		}
		versions(t, p.laned.bench, 12) // the first stock is one
		p.laned.figures(1, 900-2-2*10-1, 900-2*10-1)
		p.alone.figures(1, 900-2-2*10-1, 900-2*10-1)
		p.laned.invariants()
	})
}

// settled compares the two stores in the end, and asks that so many transactions of each lane were shared.
func (p *pairing) settled(shared float64, lanes ...string) {
	p.t.Helper()
	for _, lane := range lanes {
		if n := p.laned.gauge("twinhold_mysql_lane_batch_members", lane); n < shared {
			p.t.Errorf("%v shared transactions of the lane %s: this shows little", n, lane)
		}
	}
	if diff := cmp.Diff(tables(p.t, p.alone), tables(p.t, p.laned.bench)); diff != "" {
		p.t.Errorf("the tables without lanes (-) and with them (+):\n%s", diff)
	}
	p.alone.invariants()
	p.laned.invariants()
}

// pairing is two stores that are told the same.
type pairing struct {
	t     *testing.T
	rnd   *rand.Rand
	alone *bench
	laned *jam
	stop  atomic.Pointer[chan struct{}] // not nil: what runs alone stays before their COMMIT until it is closed
	n     int
	held  []reservation.Record
	ended []reservation.MirrorOp
	first reservation.Record // stays as it is
}

func newPairing(t *testing.T, st reservation.Stamp, tune func(*mysqlstore.Options)) *pairing {
	t.Helper()
	p := &pairing{t: t, rnd: rand.New(rand.NewPCG(7, uint64(st.Stage)))}
	still := func(o *mysqlstore.Options) { o.LowWater = -1 }
	p.alone = open(t, st, still, func(o *mysqlstore.Options) { o.NoLanes = true })
	p.laned = &jam{reg: prometheus.NewRegistry()}
	p.laned.bench = open(t, st, still, tune, func(o *mysqlstore.Options) {
		o.Registerer, o.WriteTimeout, o.LockWait = p.laned.reg, jamTime, 3*time.Second
		o.MirrorGather = -1 // who comes first runs alone, and can be stopped
		o.Failpoint = func(step string) {
			if stop := p.stop.Load(); stop != nil && strings.HasSuffix(step, ".commit") && !strings.Contains(step, "_shared") {
				p.laned.held.Add(1)
				<-*stop
			}
		}
	})
	for _, b := range []*bench{p.alone, p.laned.bench} {
		b.stock(900, 900, 5)
	}
	if st.Stage == reservation.Handover {
		return p
	}
	p.first = truthRecord(t, "first", reservation.Held, time.Hour, line(1, 1), line(2, 1))
	p.both(mirrorCall(granted(p.first)))
	p.both(mirrorCall(granted(truthRecord(t, "wanted twice", reservation.Held, time.Hour, line(1, 1)))))
	gone := truthRecord(t, "gone", reservation.Held, time.Hour, line(1, 1))
	p.both(mirrorCall(granted(gone)))
	p.both(mirrorCall(released(gone)))
	p.ended = append(p.ended, released(gone))
	return p
}

// call is an operation that either store is told of.
type call struct {
	name string
	do   func(ctx context.Context, b *bench) (any, error)
}

func mirrorCall(op reservation.MirrorOp) call {
	return call{
		fmt.Sprintf("%s %s of %q %v", op.Op, op.Decision, op.Record.Key, op.Record.Lines),
		func(ctx context.Context, b *bench) (any, error) { return b.Mirror(ctx, b.st, op) },
	}
}

func agreeCall(rec reservation.Record) call {
	return call{
		fmt.Sprintf("agree to %q %v", rec.Key, rec.Lines),
		func(ctx context.Context, b *bench) (any, error) { return b.Agree(ctx, b.st, rec) },
	}
}

func deductCall(pin reservation.Pin) call {
	return call{
		fmt.Sprintf("deduct %q %v", pin.Record.Key, pin.Record.Lines),
		func(ctx context.Context, b *bench) (any, error) { return b.Deduct(ctx, b.st, pin) },
	}
}

// both tells both stores of one operation.
func (p *pairing) both(c call) {
	p.t.Helper()
	got, err := c.do(p.t.Context(), p.laned.bench)
	p.same(c, got, err)
}

// same tells the store without lanes, and compares. A claim's instant and its place among others are its store's own.
func (p *pairing) same(c call, laned any, err error) {
	p.t.Helper()
	alone, wrong := c.do(p.t.Context(), p.alone)
	if err != nil || wrong != nil {
		p.t.Fatalf("%s: %v with lanes, %v without", c.name, err, wrong)
	}
	own := cmp.Options{cmpopts.IgnoreFields(reservation.Change{}, "Version"), cmpopts.IgnoreFields(reservation.Deduction{}, "At")}
	if diff := cmp.Diff(alone, laned, own); diff != "" {
		p.t.Errorf("%s: without lanes (-) and with them (+):\n%s", c.name, diff)
	}
}

// together has a lane stopped up by calls that stay before their COMMIT, lets the others queue in their order, and
// tells the other store of one after the other.
func (p *pairing) together(before, calls []call) {
	p.t.Helper()
	hold := make(chan struct{})
	p.laned.held.Store(0)
	p.stop.Store(&hold)
	run := func(c call, got *any) chan error {
		done := make(chan error, 1)
		go func() {
			var err error
			*got, err = c.do(p.t.Context(), p.laned.bench)
			done <- err
		}()
		return done
	}
	all := append(slices.Clone(before), calls...)
	got, done := make([]any, len(all)), make([]chan error, len(all))
	for n, c := range all {
		done[n] = run(c, &got[n])
		if n < len(before) {
			p.laned.until("it runs alone", func() bool { return int(p.laned.held.Load()) == n+1 })
			continue
		}
		p.stop.Store(nil)
		p.laned.waiting = n + 1 - len(before)
		p.laned.allWait()
	}
	close(hold)
	for n, c := range all {
		err := <-done[n]
		p.same(c, got[n], err)
	}
}

func (p *pairing) key() string {
	p.n++
	return fmt.Sprint("k", p.n)
}

// arrivals is a round of reserves of item 1. The last one is none that can be shared.
func (p *pairing) arrivals(n int) {
	p.t.Helper()
	var ops []reservation.MirrorOp
	for range n {
		lines := []reservation.Line{line(1, 1+p.rnd.Int64N(3))}
		if p.rnd.IntN(3) == 0 {
			lines = append(lines, line(2, 1+p.rnd.Int64N(4)))
		}
		if p.rnd.IntN(3) > 0 {
			rec := truthRecord(p.t, p.key(), reservation.Held, time.Hour, lines...)
			if p.rnd.IntN(5) == 0 {
				rec.Key = ""
			}
			ops, p.held = append(ops, granted(rec)), append(p.held, rec)
			continue
		}
		ops = append(ops, p.rejection(lines))
	}
	p.together(twice(granted(p.first)), mirrorCalls(append(ops, p.special())))
}

// twice is a replay that changes nothing and locks nothing.
func twice(op reservation.MirrorOp) []call { return []call{mirrorCall(op), mirrorCall(op)} }

func mirrorCalls(ops []reservation.MirrorOp) []call {
	calls := make([]call, len(ops))
	for n, op := range ops {
		calls[n] = mirrorCall(op)
	}
	return calls
}

// rejection is of what MySQL lacks too, of what it has, and of what it does not know.
func (p *pairing) rejection(lines []reservation.Line) reservation.MirrorOp {
	switch p.rnd.IntN(4) {
	case 0:
		lines[0].Quantity = 2000
	case 1:
		lines = append(lines[:1], line(3, 9))
	case 2:
		lines = append(lines[:1], line(99, 1))
	}
	rec := truthRecord(p.t, p.key(), 0, time.Hour, lines...)
	if p.rnd.IntN(2) == 0 {
		return rejected(rec)
	}
	l := lines[len(lines)-1]
	return rejected(rec, reservation.Shortage{Item: l.Item, Group: l.Group, Requested: l.Quantity, Available: 0})
}

func (p *pairing) special() reservation.MirrorOp {
	known := p.held[p.rnd.IntN(len(p.held))]
	switch p.n++; p.n % 6 {
	case 0:
		return granted(known)
	case 1: // its key under another id
		return granted(truthRecord(p.t, "wanted twice", reservation.Held, time.Hour, line(1, 2)))
	case 2: // more than there is
		return granted(truthRecord(p.t, p.key(), reservation.Held, time.Hour, line(1, 1), line(3, 4)))
	case 3: // run out already
		return granted(truthRecord(p.t, p.key(), reservation.Held, -time.Minute, line(1, 2)))
	case 4:
		return granted(truthRecord(p.t, p.key(), reservation.Held, time.Hour, line(1, 1), line(99, 1)))
	default:
		return rejected(known)
	}
}

// leavings is a round of ends.
func (p *pairing) leavings(n int) {
	p.t.Helper()
	p.rnd.Shuffle(len(p.held), func(i, j int) { p.held[i], p.held[j] = p.held[j], p.held[i] })
	var ops []reservation.MirrorOp
	for _, rec := range p.held[:min(n, len(p.held))] {
		switch p.rnd.IntN(4) {
		case 0: // decided anew at the truth
			rec.Epoch, rec.ExpiresAt = rec.Epoch+1, rec.ExpiresAt.Add(time.Minute)
		case 1:
			rec.PinnedAt = rec.CreatedAt.Add(time.Millisecond)
		}
		op := released(rec)
		if p.rnd.IntN(3) == 0 {
			if op = expiredOp(rec); p.rnd.IntN(2) == 0 {
				op.Record.ExpiredAt = time.Time{}
			}
		}
		ops = append(ops, op)
	}
	p.held = p.held[min(n, len(p.held)):]
	ops = append(ops, released(truthRecord(p.t, p.key(), reservation.Held, time.Hour, line(1, 1))), p.ended[p.rnd.IntN(len(p.ended))])
	p.together(twice(p.ended[0]), mirrorCalls(ops))
	p.ended = append(p.ended, ops[:3]...)
}

// tables gives every row of a store, but which of a bucket's units are in the pool.
func tables(t *testing.T, b *bench) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for name, q := range map[string]string{
		"reservations": `SELECT HEX(id), shop_id, idem_key, HEX(request_hash), cart, outcome, shortages, state, decided_by, epoch,
 unmirrored, judged, late, created_at, expires_at, purge_at, pinned_at, released_at, expired_at, claimed_at FROM reservations ORDER BY id`,
		"lines": "SELECT shop_id, inventory_item_id, inventory_group_id, HEX(reservation_id), quantity FROM reserved_quantities ORDER BY 1, 2, 3, 4",
		"ledger": `SELECT shop_id, inventory_item_id, inventory_group_id, on_hand, unpooled + (SELECT COUNT(*) FROM reservation_units u
 WHERE u.inventory_item_id = l.inventory_item_id), version FROM inventory_ledger l ORDER BY 1, 2, 3`,
		"entries": "SELECT inventory_item_id, kind, HEX(ref), delta, version FROM ledger_entries ORDER BY 1, 2, 3",
		"marks":   "SELECT HEX(reservation_id) FROM reservation_marks ORDER BY 1",
	} {
		out[name] = texts(t, b.DB(), q)
	}
	return out
}

func texts(t *testing.T, db *sql.DB, query string) (out []string) {
	t.Helper()
	rows, err := db.QueryContext(context.WithoutCancel(t.Context()), query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		cells := make([]sql.NullString, len(columns))
		into := make([]any, len(columns))
		for n := range cells {
			into[n] = &cells[n]
		}
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		text := make([]string, len(columns))
		for n, c := range cells {
			if text[n] = c.String; !c.Valid {
				text[n] = "NULL"
			}
		}
		out = append(out, strings.Join(text, " | "))
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestMirrorGathers (I2): mirrored operations wait for company, for nobody waits for them: reserves of many buckets share a
// transaction, so do ends of holds of one; a lone one is carried out all the same, and one that has given up is not.
func TestMirrorGathers(t *testing.T) {
	t.Parallel()
	multi(t, func(t *testing.T, tune func(*mysqlstore.Options)) {
		reg := prometheus.NewRegistry()
		b := open(t, shadow, tune, func(o *mysqlstore.Options) { o.Registerer, o.MirrorGather = reg, 200*time.Millisecond })
		j := &jam{bench: b, reg: reg}
		const buckets, each = 8, 4
		var stock []int64
		for range buckets {
			stock = append(stock, 100)
		}
		b.stock(stock...)
		recs := make([]reservation.Record, 0, buckets*each)
		for n := range buckets * each {
			recs = append(recs, truthRecord(t, fmt.Sprint("k", n), reservation.Held, time.Hour, line(int64(n%buckets+1), 1)))
		}
		all := func(op func(reservation.Record) reservation.MirrorOp) {
			t.Helper()
			var wg sync.WaitGroup
			for _, rec := range recs {
				wg.Go(func() {
					if j, err := b.Mirror(t.Context(), b.st, op(rec)); err != nil || !j.Stored {
						t.Errorf("%+v, %v", j, err)
					}
				})
			}
			wg.Wait()
		}
		all(granted)
		if n := j.gauge("twinhold_mysql_lane_batch_members", "mirror_reserve"); n == 0 || n > 4 {
			t.Errorf("%d reserves of %d buckets made %v shared transactions", len(recs), buckets, n)
		}
		b.figures(1, 100-each, 100)
		all(released)
		if n := j.gauge("twinhold_mysql_lane_batch_members", "mirror_ledger"); n == 0 || n > 3*buckets {
			t.Errorf("%d releases of %d buckets made %v shared transactions", len(recs), buckets, n)
		}
		b.figures(1, 100, 100)
		// The truth said no to another request with a key that it had just granted: the grant comes first here too.
		first, other := truthRecord(t, "key", reservation.Held, time.Hour, line(1, 1)), truthRecord(t, "key", reservation.Held, time.Hour, line(1, 2))
		granting := make(chan error, 1)
		go func() {
			_, err := b.Mirror(t.Context(), b.st, granted(first))
			granting <- err
		}()
		b.until("the grant waits for company", func() bool { return j.gauge("twinhold_mysql_lane_waiting") == 1 })
		conflict := reservation.MirrorOp{Op: reservation.OpReserve, Decision: reservation.KeyConflict, Record: other}
		if got, err := b.Mirror(t.Context(), b.st, conflict); err != nil || got.Decision != reservation.KeyConflict {
			t.Errorf("another request with the key: %+v, %v", got, err)
		}
		if err := <-granting; err != nil {
			t.Error(err)
		}
		b.mirror(released(first))
		lone := truthRecord(t, "lone", reservation.Held, time.Hour, line(1, 1))
		b.mirror(granted(lone))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		gone := truthRecord(t, "gone", reservation.Held, time.Hour, line(1, 1))
		if _, err := b.Mirror(ctx, b.st, granted(gone)); reservation.CodeOf(err) != reservation.CodeUnavailable {
			t.Errorf("one that has given up: %v", err)
		}
		b.figures(1, 99, 100)
		if n := j.gauge("twinhold_mysql_lane_waiting"); n != 0 {
			t.Errorf("%v wait still", n)
		}
		b.invariants()
	})
}
