package mysqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
				for _, lane := range []string{"mirror_reserve", "mirror_ledger"} {
					if p.laned.gauge("twinhold_mysql_lane_batch_members", lane) < 4 {
						t.Errorf("no more than %v shared transactions of the lane %s: this shows little", p.laned.gauge("twinhold_mysql_lane_batch_members", lane), lane)
					}
				}
				if diff := cmp.Diff(tables(t, p.alone), tables(t, p.laned.bench)); diff != "" {
					t.Errorf("the tables without lanes (-) and with them (+):\n%s", diff)
				}
				p.alone.invariants()
				p.laned.invariants()
			})
		}
	}
}

// pairing is two stores that are told the same.
type pairing struct {
	t     *testing.T
	rnd   *rand.Rand
	alone *bench
	laned *jam
	stop  atomic.Pointer[chan struct{}] // not nil: mirror operations that run alone stay before their COMMIT until it is closed
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
		o.Registerer, o.WriteTimeout = p.laned.reg, jamTime
		o.Failpoint = func(step string) {
			if stop := p.stop.Load(); stop != nil && strings.HasPrefix(step, "mirror_") && strings.HasSuffix(step, ".commit") && !strings.Contains(step, "_shared") {
				p.laned.held.Add(1)
				<-*stop
			}
		}
	})
	for _, b := range []*bench{p.alone, p.laned.bench} {
		b.stock(900, 900, 5)
	}
	p.first = truthRecord(t, "first", reservation.Held, time.Hour, line(1, 1), line(2, 1))
	p.both(granted(p.first))
	p.both(granted(truthRecord(t, "wanted twice", reservation.Held, time.Hour, line(1, 1))))
	gone := truthRecord(t, "gone", reservation.Held, time.Hour, line(1, 1))
	p.both(granted(gone))
	p.both(released(gone))
	p.ended = append(p.ended, released(gone))
	return p
}

// both tells both stores of one operation.
func (p *pairing) both(op reservation.MirrorOp) {
	p.t.Helper()
	p.same(op, p.alone.mirror(op), p.laned.mirror(op))
}

func (p *pairing) same(op reservation.MirrorOp, alone, laned reservation.Judgement) {
	p.t.Helper()
	if diff := cmp.Diff(alone, laned); diff != "" {
		p.t.Errorf("%s %s of %s (%v): the judgement without lanes (-) and with them (+):\n%s",
			op.Op, op.Decision, op.Record.Key, op.Record.Lines, diff)
	}
}

// together has a lane stopped up by two replays, which change nothing, lets the operations queue in their order, and
// tells the other store of one after the other.
func (p *pairing) together(again reservation.MirrorOp, ops []reservation.MirrorOp) {
	p.t.Helper()
	hold := make(chan struct{})
	p.laned.held.Store(0)
	p.stop.Store(&hold)
	for range 2 {
		p.laned.solos.Go(func() {
			if _, err := p.laned.Mirror(p.t.Context(), p.laned.st, again); err != nil {
				p.t.Error(err)
			}
		})
	}
	p.laned.until("two run alone", func() bool { return p.laned.held.Load() == 2 })
	p.stop.Store(nil)
	got := make([]reservation.Judgement, len(ops))
	done := make([]chan error, len(ops))
	for n, op := range ops {
		p.laned.waiting = n
		done[n] = p.laned.queue(func() (err error) {
			got[n], err = p.laned.Mirror(p.t.Context(), p.laned.st, op)
			return err
		})
	}
	close(hold)
	for n, op := range ops {
		if err := <-done[n]; err != nil {
			p.t.Fatalf("%s of %s: %v", op.Op, op.Record.Key, err)
		}
		p.same(op, p.alone.mirror(op), got[n])
	}
	p.laned.solos.Wait()
	p.laned.waiting = 0
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
	p.together(granted(p.first), append(ops, p.special()))
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
	p.together(p.ended[0], ops)
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
