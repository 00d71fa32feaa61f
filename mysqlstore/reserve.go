package mysqlstore

import (
	"context"
	"errors"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// errShort: fewer units could be locked than the cart wants; nothing was written.
var errShort = errors.New("too few free units")

// keyTakenError: the key belongs to a record that is past its retention.
type keyTakenError struct{ holder *row }

func (e *keyTakenError) Error() string {
	return "the key belongs to a record past its retention: " + e.holder.ID.String()
}

// Reserve takes the units of all lines, or none and stores the rejection. The error is *UnknownBucketError,
// ErrKeyConflict, ErrFrozen, ErrBusy (others held the units until the deadline), *FenceError, *UnavailableError or
// *UnknownOutcomeError.
func (s *Store) Reserve(ctx context.Context, st reservation.Stamp, id reservation.ID, req reservation.Request) (reservation.Result, error) {
	return s.reserve(ctx, &reserving{s: s, st: st, id: id, req: req})
}

func (s *Store) reserve(ctx context.Context, a *reserving) (reservation.Result, error) {
	ctx, cancel := s.withBudget(ctx)
	defer cancel()
	st, req := a.st, a.req
	waited := false
	for n := 1; ; n++ {
		a.recall()
		err := a.attempt(ctx)
		var taken *keyTakenError
		switch {
		case err == nil:
			if a.recalled && a.levels != nil && !a.res.Replayed {
				s.metrics.soldOutMemory.Inc()
			}
			if rec := a.res.Record; rec.State == reservation.Held && !a.res.Replayed {
				s.recent.add(rec)
			}
			return a.res, nil
		case errors.As(err, &taken):
			if err := s.retireKey(ctx, st, taken.holder); err != nil {
				return reservation.Result{}, err
			}
			continue
		case !errors.Is(err, errShort):
			return reservation.Result{}, busyAtLast(ctx, waited, err)
		}
		a.levels, a.seen, a.recalled = nil, nil, false
		next, err := s.makeRoom(ctx, room{st: st, shop: req.Shop, lines: req.Lines, large: a.ledger || s.large(req.Lines), expire: st.Stage.Truth() == reservation.MySQL})
		switch {
		case err != nil:
			return reservation.Result{}, busyAtLast(ctx, waited, err)
		case next.soldOut != nil:
			a.looks++
			a.levels, a.seen = next.soldOut, next.seen
		case next.ledger:
			a.ledger = true
		case next.busy:
			waited = true
			s.metrics.busy.WithLabelValues("reserve").Inc()
			if !pause(ctx, n) {
				return reservation.Result{}, reservation.ErrBusy
			}
		}
	}
}

// large tells whether a cart is served from unpooled first.
func (s *Store) large(lines []reservation.Line) bool {
	if reservation.Units(lines) > s.opts.LargeCart {
		return true
	}
	for _, l := range lines {
		if l.Quantity > int64(s.opts.PoolSize) {
			return true
		}
	}
	return false
}

// reserving is one Reserve through its attempts.
type reserving struct {
	s      *Store
	st     reservation.Stamp
	id     reservation.ID
	req    reservation.Request
	mark   bool    // the outcome is answered without Redis
	lookUp bool    // the key is to be looked up: it was not, and there were too few units
	ledger bool    // take from unpooled first
	levels []level // not nil: sold out, as read without locks
	seen   *sighting
	looks  int // that found it sold out
	// recalled: another caller's look
	recalled bool
	res      reservation.Result
	again    bool // an earlier attempt of this call came as far as storing the record, or met somebody's
	prior    error
}

// recall takes another caller's look for its own, if it found too little just now.
func (a *reserving) recall() {
	if a.levels != nil || a.s.opts.NoLanes || len(a.req.Lines) != 1 {
		return
	}
	l := a.req.Lines[0]
	if g := a.s.soldOut.short(l.Bucket(a.req.Shop), l.Quantity, a.s.opts.Now()); g != nil {
		a.levels, a.seen, a.recalled = []level{g.level}, g, true
	}
}

// believes tells whether the caller is still sold out. What a look said is believed for a moment, and not once stock
// was given back; but who has looked several times is answered in the end.
func (a *reserving) believes(now time.Time) bool {
	if a.levels == nil {
		return false
	}
	return a.seen == nil || a.looks >= ownLooks || a.s.soldOut.holds(a.seen, now)
}

// try runs one transaction of its own, and again as write does. After its first attempt the lane's turn is over.
func (a *reserving) try(ctx context.Context, attempted func()) error {
	w := work{
		path: "reserve", op: reservation.OpReserve, stamp: a.st, id: a.id, lines: len(a.req.Lines),
		prior: a.prior, attempted: attempted,
	}
	if !a.believes(a.s.opts.Now()) {
		a.levels, a.seen = nil, nil
	}
	first := true
	return a.s.write(ctx, w, func(ctx context.Context, t *tx) error {
		a.again = a.again || !first
		first = false
		replayed, err := a.replay(ctx, t)
		if err != nil || replayed {
			return err
		}
		if a.req.Frozen || t.fence.Forbids(a.req.Shop, a.req.Lines) {
			return reservation.ErrFrozen
		}
		if a.levels != nil {
			return a.reject(ctx, t)
		}
		return a.grant(ctx, t)
	})
}

// replay answers with the record that has the key, if there is one.
func (a *reserving) replay(ctx context.Context, t *tx) (bool, error) {
	old, err := rowByKey(ctx, t.conn, a.req.Shop, a.req.Key)
	switch {
	case err != nil:
		return false, err
	case old == nil && a.again:
		return false, a.idFree(ctx, t)
	case old == nil:
		return false, nil
	case old.purged():
		return false, &keyTakenError{old}
	case old.Hash != a.req.Hash:
		return false, reservation.ErrKeyConflict
	}
	a.res = reservation.Result{Record: old.Record, Replayed: old.ID != a.id || !a.again}
	if a.mark && !old.Marked {
		a.res.Record.Marked = true
		return true, a.s.markRow(ctx, t, old.ID)
	}
	return true, nil
}

// idFree refuses an id that a reservation under another key has: whoever made it up twice has to make another.
func (a *reserving) idFree(ctx context.Context, t *tx) error {
	other, err := rowByID(ctx, t.conn, qRecord, a.id)
	if err == nil && other != nil {
		err = reservation.ErrKeyConflict
	}
	return err
}

func (a *reserving) record(t *tx, outcome reservation.Decision, state reservation.State) reservation.Record {
	return reservation.Record{
		ID: a.id, Shop: a.req.Shop, Key: a.req.Key, Hash: a.req.Hash, Lines: a.req.Lines,
		Outcome: outcome, State: state, DecidedBy: reservation.MySQL, Epoch: a.st.Epoch, Marked: a.mark,
		CreatedAt: t.now, ExpiresAt: t.now.Add(a.req.TTL), PurgeAt: t.now.Add(a.req.TTL + a.s.opts.Retention),
	}
}

func (a *reserving) grant(ctx context.Context, t *tx) error {
	if err := a.s.takeGranted(ctx, t, a.req.Shop, a.req.Lines, a.ledger); err != nil {
		return err
	}
	rec := a.record(t, reservation.Granted, reservation.Held)
	a.res = reservation.Result{Record: rec}
	return a.s.insertRecord(ctx, t, rec, nil)
}

func (a *reserving) reject(ctx context.Context, t *tx) error {
	rec := a.record(t, reservation.RejectedShort, reservation.Rejected)
	rec.Shortages = shortagesOf(a.req.Lines, a.levels)
	a.res = reservation.Result{Record: rec, Levels: levelsOf(a.levels)}
	return a.s.insertRecord(ctx, t, rec, nil)
}

// takeGranted takes the units of all lines as a grant does, or gives errShort. A large cart goes to unpooled first,
// under the ledgers' locks; so does one that is told to.
func (s *Store) takeGranted(ctx context.Context, t *tx, shop int64, lines []reservation.Line, ledger bool) error {
	if ledger || s.large(lines) {
		return s.takeLarge(ctx, t, shop, lines)
	}
	wants := make([]want, len(lines))
	for n, l := range lines {
		wants[n] = want{bucket: l.Bucket(shop), units: l.Quantity}
	}
	units, had, err := lockUnits(ctx, t, lockSkip, wants)
	if err != nil {
		return err
	}
	for n, w := range wants {
		if had[n] < w.units {
			return errShort
		}
	}
	return s.deleteUnits(ctx, t, units)
}

func (s *Store) takeLarge(ctx context.Context, t *tx, shop int64, lines []reservation.Line) error {
	ls, err := lockLedgers(ctx, t, qLedgerLock, bucketsOf(shop, lines))
	if err != nil {
		return err
	}
	if err := ls.unknown(); err != nil {
		return err
	}
	takes, units, had, err := lockQuantity(ctx, t, lockSkip, shop, lines, ls)
	if err != nil {
		return err
	}
	if !had {
		return errShort
	}
	return s.takeLocked(ctx, t, shop, lines, takes, units)
}

// takeLocked writes what lockQuantity locked.
func (s *Store) takeLocked(ctx context.Context, t *tx, shop int64, lines []reservation.Line, takes []take, units [][]int64) error {
	moves := make([]move, 0, len(lines))
	for n, l := range lines {
		if takes[n].unpooled != 0 {
			moves = append(moves, move{bucket: l.Bucket(shop), unpooled: -takes[n].unpooled})
		}
	}
	if len(moves) > 0 {
		if err := s.moveLedgers(ctx, t, moves); err != nil {
			return err
		}
	}
	return s.deleteUnits(ctx, t, units)
}

// retireKey sets a key free that belongs to a record past its retention. One that is still held is expired first.
func (s *Store) retireKey(ctx context.Context, st reservation.Stamp, holder *row) error {
	if holder.State.TakesUnits() {
		due := []dueHold{{id: holder.ID, shop: holder.Shop, lines: holder.Lines}}
		began := time.Now()
		exp, err := s.expire(ctx, st, due, false)
		s.ended.tell(st, exp.expired, began)
		if err != nil {
			return err
		}
	}
	w := work{path: "retire_key", op: reservation.OpReserve, stamp: st, id: holder.ID}
	return s.write(ctx, w, func(ctx context.Context, t *tx) error {
		_, err := exec(ctx, t.conn, qKeyRetire, holder.ID[:])
		return err
	})
}
