package mysqlstore

import (
	"context"
	"errors"

	"github.com/twinhold/twinhold/reservation"
)

// busyRounds is how often a mirrored grant tries for free units before it waits for those that others hold.
const busyRounds = 16

// errNeedsLocks: the operation changes something that stands, so it has to take the ledgers' locks first.
var errNeedsLocks = errors.New("needs the ledgers' locks")

// Mirror judges an operation that Redis has carried out and stores what it did, in one transaction. It may come in any
// order and any number of times: states only move up, units move once. A claimed record whose entry is not in the
// ledger is ErrEntryMissing; a provisional one is refused, since nobody was promised it.
//
// Where MySQL decides by itself (catch-up brings what Redis has), its own answer stands: its held or rejected, its
// expiry, its holder of the key. A hold that it does not know is stored only if there are units for it. With Adopt a
// hold is stored by force, in every stage, over a rejection too.
func (s *Store) Mirror(ctx context.Context, st reservation.Stamp, op reservation.MirrorOp) (reservation.Judgement, error) {
	m := &mirroring{s: s, st: st, op: op}
	m.path = "mirror_" + op.Op.String()
	ctx, cancel := s.withBudget(inClass(ctx, mirrorClass))
	defer cancel()
	if !op.Decision.Stores() {
		w := m.inTurn(ctx)
		defer w.turn.end()
		if w.err != nil {
			return reservation.Judgement{}, w.err
		}
		return m.judgeOnly(ctx)
	}
	if err := validateRecord(op.Record); err != nil {
		return reservation.Judgement{}, err
	}
	switch op.Record.State {
	case reservation.Provisional:
		return reservation.Judgement{}, &reservation.InvalidError{Field: "record.state", Reason: "is provisional: nobody was promised it, so there is nothing to store"}
	case reservation.Claiming:
		m.op.Record.State = reservation.Held
	default:
	}
	return m.store(ctx)
}

// mirroring is one mirror operation through its attempts.
type mirroring struct {
	s    *Store
	st   reservation.Stamp
	op   reservation.MirrorOp
	path string
	// ledger: take from unpooled first
	ledger bool
	res    reservation.Judgement

	told   word                   // by its lane
	stored *reservation.Judgement // by an earlier transaction, whose COMMIT was not confirmed
}

// decides tells whether MySQL is the truth in the caller's stage.
func (m *mirroring) decides() bool { return m.st.Stage.Truth() == reservation.MySQL }

// unpromised is a hold of Redis's where MySQL decides: nobody was answered.
func (m *mirroring) unpromised() bool { return m.decides() && !m.op.Adopt }

func (m *mirroring) store(ctx context.Context) (reservation.Judgement, error) {
	rec := m.op.Record
	locked, waited := false, false
	defer func() { m.told.turn.end() }()
	for n := 1; ; n++ {
		err := m.attempt(ctx, locked)
		switch {
		case err == nil:
			return m.res, nil
		case errors.Is(err, errNeedsLocks):
			locked = true
			continue
		case !errors.Is(err, errShort):
			return m.unknownBucket(busyAtLast(ctx, waited, err))
		}
		next, err := m.s.makeRoom(ctx, room{st: m.st, shop: rec.Shop, lines: rec.Lines, large: m.ledger || m.s.large(rec.Lines)})
		switch {
		case err != nil:
			return m.unknownBucket(busyAtLast(ctx, waited, err))
		case next.soldOut != nil && m.unpromised():
			return reservation.Judgement{
				Decision: reservation.RejectedShort, Levels: levelsOf(next.soldOut), Shortages: shortagesOf(rec.Lines, next.soldOut),
			}, nil
		case next.soldOut != nil, n >= busyRounds && !m.unpromised():
			locked = true
		case next.ledger:
			m.ledger = true
		case next.busy:
			waited = true
			m.s.metrics.busy.WithLabelValues("mirror").Inc()
			if !pause(ctx, n) {
				return reservation.Judgement{}, reservation.ErrBusy
			}
		}
	}
}

// unknownBucket turns that error into a judgement: a hold cannot be forced into a bucket that has no ledger row.
func (m *mirroring) unknownBucket(err error) (reservation.Judgement, error) {
	var ub *reservation.UnknownBucketError
	if errors.As(err, &ub) {
		return reservation.Judgement{Decision: reservation.UnknownBucket}, nil
	}
	return reservation.Judgement{}, err
}

func (m *mirroring) try(ctx context.Context, locked bool) error {
	rec := m.op.Record
	w := work{path: m.path, op: m.op.Op, stamp: m.st, id: rec.ID, lines: len(rec.Lines), prior: m.told.prior}
	if t := m.told.turn; t != nil && (locked || m.op.Op == reservation.OpReserve) {
		w.attempted = t.end
	}
	return m.s.write(ctx, w, func(ctx context.Context, t *tx) error {
		m.res = reservation.Judgement{}
		look := lookPair
		if locked {
			look = func(ctx context.Context, _ runner, rec reservation.Record) (*pair, error) {
				return lockPair(ctx, t, rec)
			}
		}
		p, err := look(ctx, t.conn, rec)
		if err != nil {
			return err
		}
		if p.cur != nil && p.cur.Shop != rec.Shop {
			return corrupt("reservation %s is shop %d's here and shop %d's at the truth", rec.ID, p.cur.Shop, rec.Shop)
		}
		l := &landing{m: m, t: t, p: p, locked: locked}
		if err := l.run(ctx); err != nil {
			return err
		}
		switch {
		case m.res.Stored:
			kept := m.res
			m.stored = &kept
		case m.stored != nil && m.stored.State == m.res.State:
			m.res = *m.stored // it was committed after all
		}
		return nil
	})
}

// judgeOnly judges an operation that changed nothing at the truth, with plain reads.
func (m *mirroring) judgeOnly(ctx context.Context) (reservation.Judgement, error) {
	w := work{path: m.path, op: m.op.Op, stamp: m.st}
	err := m.s.write(ctx, w, func(ctx context.Context, t *tx) (err error) {
		switch m.op.Op {
		case reservation.OpReserve:
			m.res, err = m.judgeRefused(ctx, t)
		case reservation.OpAdjust:
			m.res, err = m.judgeAdjust(ctx, t)
		default:
			m.res, err = m.judgeUnknown(ctx, t)
		}
		return err
	})
	if err != nil {
		return reservation.Judgement{}, err
	}
	return m.res, nil
}

// judgeRefused is a reserve that the truth did not decide: a conflicting key, an unknown bucket.
func (m *mirroring) judgeRefused(ctx context.Context, t *tx) (reservation.Judgement, error) {
	rec := m.op.Record
	holder, err := rowByKey(ctx, t.conn, rec.Shop, rec.Key)
	if err != nil {
		return reservation.Judgement{}, err
	}
	if v := judgeKey(rec, holder); v != nil {
		j := v.judgement()
		j.State = holder.State
		return j, nil
	}
	ls, err := countLevels(ctx, t.conn, bucketsOf(rec.Shop, rec.Lines))
	if err != nil {
		return reservation.Judgement{}, err
	}
	v := judgeReserve(rec, ls, nil)
	if v.Decision != m.op.Decision {
		v.Levels = levelsOf(ls)
	}
	return v.judgement(), nil
}

// judgeUnknown is a claim or release that the truth refused.
func (m *mirroring) judgeUnknown(ctx context.Context, t *tx) (reservation.Judgement, error) {
	rec := m.op.Record
	cur, err := rowByID(ctx, t.conn, qRecord, rec.ID)
	if err != nil {
		return reservation.Judgement{}, err
	}
	if cur == nil || cur.Shop != rec.Shop || cur.purged() {
		return reservation.Judgement{Decision: reservation.NotFound}, nil
	}
	j := judgeExisting(m.op, cur)
	j.State, j.Record, j.Overtaken = cur.State, &cur.Record, false
	return j, nil
}
