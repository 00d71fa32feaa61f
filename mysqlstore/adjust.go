package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/twinhold/twinhold/reservation"
)

// Adjust changes a bucket's stock where MySQL decides. A negative delta never goes below what is promised, unless
// forced (*ShortError); on_hand never leaves 0..MaxOnHand, forced or not.
func (s *Store) Adjust(ctx context.Context, st reservation.Stamp, adj reservation.Adjustment) (reservation.AdjustResult, error) {
	return s.adjust(ctx, &adjusting{s: s, st: st, adj: adj})
}

// ApplyAdjustment makes an adjustment permanent that Redis has decided. With taken it is carried out even where the
// pool lacks it; Mirror then says what MySQL would have answered by itself.
func (s *Store) ApplyAdjustment(ctx context.Context, st reservation.Stamp, adj reservation.Adjustment, taken bool) (reservation.AdjustResult, error) {
	return s.adjust(ctx, &adjusting{s: s, st: st, adj: adj, taken: taken, applied: true})
}

// errShortNow: a reduction found too little that is free; why is looked at without locks.
var errShortNow = errors.New("too little is free")

func (s *Store) adjust(ctx context.Context, a *adjusting) (reservation.AdjustResult, error) {
	st, adj := a.st, a.adj
	if err := adj.Validate(); err != nil {
		return reservation.AdjustResult{}, err
	}
	ctx, cancel := s.withBudget(ctx)
	defer cancel()
	waited := false
	for n := 1; ; n++ {
		err := a.try(ctx)
		if !errors.Is(err, errShortNow) {
			if err != nil {
				return reservation.AdjustResult{}, busyAtLast(ctx, waited, err)
			}
			return a.res, nil
		}
		// The lines of a reduction are those of a cart that is served from unpooled first.
		next, err := s.makeRoom(ctx, room{
			st: st, shop: adj.Bucket.Shop, large: true, expire: st.Stage.Truth() == reservation.MySQL,
			lines: []reservation.Line{{Item: adj.Bucket.Item, Group: adj.Bucket.Group, Quantity: -adj.Delta}},
		})
		switch {
		case err != nil:
			return reservation.AdjustResult{}, busyAtLast(ctx, waited, err)
		case next.soldOut != nil:
			return reservation.AdjustResult{}, &reservation.ShortError{
				Bucket: adj.Bucket, Asked: -adj.Delta, Available: next.soldOut[0].available(),
			}
		}
		waited = true
		s.metrics.busy.WithLabelValues("adjust").Inc()
		if !pause(ctx, n) {
			return reservation.AdjustResult{}, reservation.ErrBusy
		}
	}
}

// adjusting is one adjustment through its attempts.
type adjusting struct {
	s       *Store
	st      reservation.Stamp
	adj     reservation.Adjustment
	taken   bool // Redis has taken it: it is carried out whatever the pool has
	applied bool // Redis decides: the result says what MySQL would have answered
	res     reservation.AdjustResult
}

func (a *adjusting) try(ctx context.Context) error {
	stored := false // by an earlier run of the body, whose COMMIT was not confirmed
	w := work{path: "adjust", op: reservation.OpAdjust, stamp: a.st}
	return a.s.write(ctx, w, func(ctx context.Context, t *tx) error {
		before := a.res
		a.res = reservation.AdjustResult{}
		ls, err := lockLedgers(ctx, t, qLedgerLock, []reservation.Bucket{a.adj.Bucket})
		if err != nil {
			return err
		}
		// Under the ledger's lock, so that an earlier try whose commit is unknown has ended.
		old, err := adjustmentOf(ctx, t.conn, a.adj.Bucket.Shop, a.adj.ID)
		switch {
		case err != nil:
			return err
		case old != nil && (old.Bucket != a.adj.Bucket || old.Delta != a.adj.Delta):
			return reservation.ErrKeyConflict
		case old != nil:
			l := ls[0]
			a.res = reservation.AdjustResult{
				Figures: reservation.Figures{Bucket: l.bucket, OnHand: l.onHand, Version: l.version},
				Change:  old.change(), Replayed: !stored, Forced: old.Force,
			}
			a.judge(true, 0, nil)
			if stored {
				a.res.Mirror = before.Mirror
			}
			return nil
		}
		if err := ls.unknown(); err != nil {
			return err
		}
		if a.adj.Delta > 0 {
			err = a.raise(ctx, t, ls[0])
		} else {
			err = a.lower(ctx, t, ls)
		}
		stored = stored || err == nil
		return err
	})
}

func (a *adjusting) raise(ctx context.Context, t *tx, l level) error {
	if l.onHand+a.adj.Delta > reservation.MaxOnHand {
		return &reservation.InvalidError{Field: "delta", Reason: fmt.Sprintf(
			"%d would make the stock %d: a bucket holds %d at most", a.adj.Delta, l.onHand+a.adj.Delta, int64(reservation.MaxOnHand))}
	}
	a.judge(true, 0, nil)
	return a.store(ctx, t, l, a.adj.Delta, nil)
}

func (a *adjusting) lower(ctx context.Context, t *tx, ls ledgers) error {
	l, q := ls[0], -a.adj.Delta
	if l.onHand < q {
		return &reservation.ShortError{Bucket: l.bucket, Asked: q, Available: l.onHand}
	}
	lines := []reservation.Line{{Item: l.bucket.Item, Group: l.bucket.Group, Quantity: q}}
	counted, err := countLevels(ctx, t.conn, []reservation.Bucket{l.bucket})
	if err != nil {
		return err
	}
	force := a.adj.Force || a.taken
	clause := lockSkip
	if force {
		clause = lockWait
	}
	takes, units, had, err := lockQuantity(ctx, t, clause, l.bucket.Shop, lines, ls)
	if err != nil {
		return err
	}
	if !had && !force {
		return errShortNow
	}
	a.judge(had || a.adj.Force, beyond(takes), counted)
	a.res.Forced = !had && a.adj.Force
	if !had {
		a.s.metrics.forced.WithLabelValues("adjust").Add(float64(beyond(takes)))
	}
	return a.store(ctx, t, l, -takes[0].unpooled, units)
}

// judge notes what MySQL would have answered, where Redis decides.
func (a *adjusting) judge(granted bool, forced int64, seen []level) {
	if !a.applied {
		return
	}
	j := &reservation.Judgement{Decision: reservation.Adjusted, Stored: true, Forced: forced}
	if !granted {
		j.Decision, j.Levels = reservation.AdjustRefused, levelsOf(seen)
	}
	a.res.Mirror = j
}

func (a *adjusting) store(ctx context.Context, t *tx, l level, unpooled int64, units [][]int64) error {
	m := move{bucket: l.bucket, onHand: a.adj.Delta, unpooled: unpooled, version: 1}
	if err := a.s.moveLedgers(ctx, t, []move{m}); err != nil {
		return err
	}
	if err := a.s.deleteUnits(ctx, t, units); err != nil {
		return err
	}
	id := []byte(a.adj.ID)
	// Where the truth has taken it already, only the truth knows what it lacked: what a person forced is on record.
	forced := a.adj.Force && (a.res.Forced || a.taken)
	_, err := exec(ctx, t.conn, qEntryAdjust, l.bucket.Shop, l.bucket.Item, l.bucket.Group, id, id, a.adj.Delta, l.version+1, forced, t.now)
	a.s.step(t, "entries")
	a.res.Figures = reservation.Figures{Bucket: l.bucket, OnHand: l.onHand + a.adj.Delta, Version: l.version + 1}
	a.res.Change = reservation.Change{Bucket: l.bucket, Delta: a.adj.Delta, Version: l.version + 1}
	return err
}

// pastAdjustment is an adjustment as its entry says it. Force tells whether it went below what was promised.
type pastAdjustment struct {
	reservation.Adjustment
	version int64
}

func (p *pastAdjustment) change() reservation.Change {
	return reservation.Change{Bucket: p.Bucket, Delta: p.Delta, Version: p.version}
}

// adjustmentOf finds a past adjustment; nil if there is none.
func adjustmentOf(ctx context.Context, r runner, shop int64, id string) (*pastAdjustment, error) {
	var found *pastAdjustment
	err := each(ctx, r, func(rows *sql.Rows) error {
		a := &pastAdjustment{Adjustment: reservation.Adjustment{ID: id, Bucket: reservation.Bucket{Shop: shop}}}
		if err := rows.Scan(&a.Bucket.Item, &a.Bucket.Group, &a.Delta, &a.version, &a.Force); err != nil {
			return asSQL(err)
		}
		found = a
		return nil
	}, qAdjustment, shop, []byte(id))
	return found, err
}

// AdjustmentByID finds a past adjustment, with its own change and its bucket's figures as they are now. Force says
// that it went below what was promised.
func (s *Store) AdjustmentByID(ctx context.Context, shop int64, id string) (reservation.Adjustment, reservation.AdjustResult, error) {
	var adj reservation.Adjustment
	var res reservation.AdjustResult
	err := s.read(ctx, "adjustment", func(ctx context.Context) error {
		found, err := adjustmentOf(ctx, s.reads, shop, id)
		if err != nil {
			return err
		}
		if found == nil {
			return reservation.ErrNotFound
		}
		ls, err := countLevels(ctx, s.reads, []reservation.Bucket{found.Bucket})
		if err != nil {
			return err
		}
		adj = found.Adjustment
		res = reservation.AdjustResult{
			Figures: reservation.Figures{Bucket: found.Bucket, OnHand: ls[0].onHand, Version: ls[0].version},
			Change:  found.change(), Replayed: true, Forced: found.Force,
		}
		return nil
	})
	return adj, res, err
}
