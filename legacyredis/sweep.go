package legacyredis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

const (
	defaultSweep = 500
	// postponement is how long a record that cannot be read stays out of the sweeper's way.
	postponement = time.Minute
)

// Sweep does what is due: ends holds past their time, rolls pins older than their lease forward, removes records
// past their retention. While MySQL decides it ends provisional holds only, and reports none: the others are MySQL's
// to end, and reach Redis as its mirror does. It goes through limit records at most (500 if limit is not positive). A record that cannot
// be read is skipped and comes up again later. Two sweeps at once do no harm.
func (s *Store) Sweep(ctx context.Context, st reservation.Stamp, limit int) (reservation.SweepResult, error) {
	if limit <= 0 {
		limit = defaultSweep
	}
	r, err := s.run(ctx, call{
		script: s.scripts.due, op: reservation.OpExpire, stamp: st,
		args: []any{strconv.Itoa(limit)}, readOnly: true,
	})
	if err != nil {
		return reservation.SweepResult{}, err
	}
	members := make([]string, len(r.vals))
	for i := range r.vals {
		members[i] = r.text(i)
	}
	s.fail(FailSweepBegun)
	w := sweep{store: s, stamp: st, token: token()}
	w.res.More = len(members) == limit
	for chunk := range slices.Chunk(members, finishBatch) {
		if err := w.chunk(ctx, chunk); err != nil {
			return w.res, err
		}
	}
	return w.res, nil
}

// sweep is one run of the sweeper.
type sweep struct {
	store *Store
	stamp reservation.Stamp
	token string
	res   reservation.SweepResult
	// ledgerDown: a pin met a ledger that does not answer; the other pins of this sweep do not wait for it too.
	ledgerDown bool
}

// chunk goes through some members. Its first error ends the sweep, but not before every answer was read: an expiry
// that was carried out is reported.
func (w *sweep) chunk(ctx context.Context, members []string) error {
	s := w.store
	calls := make([]call, len(members))
	for i, m := range members {
		calls[i] = call{
			script: s.scripts.sweep, op: reservation.OpExpire, stamp: w.stamp,
			args: []any{m, micros(s.lease), w.token},
		}
	}
	var first error
	outcomes := s.runAll(ctx, calls)
	s.fail(FailSweepDone)
	for i, o := range outcomes {
		err := o.err
		if err == nil {
			err = w.member(ctx, members[i], o.reply)
		}
		var corrupt *reservation.CorruptError
		if errors.As(err, &corrupt) {
			err = w.skip(ctx, members[i], err)
		}
		if first == nil {
			first = err
		}
	}
	return first
}

func (w *sweep) member(ctx context.Context, member string, r reply) error {
	switch r.status {
	case "NOTDUE", "GONE", "ENDED":
		return nil
	case "PURGED":
		w.res.Purged++
		return nil
	case "ADJPIN":
		return w.adjustment(ctx, member, r)
	case "EXPIRED", "PIN":
		id, err := reservation.ParseID(member)
		if err != nil {
			return &reservation.CorruptError{Store: reservation.Redis, What: fmt.Sprintf("%s holds %q, which is no id", w.store.keys.exp(), member)}
		}
		rec, err := w.store.recordOf(id, r, 0)
		if err != nil {
			return err
		}
		if r.status == "PIN" {
			return w.claim(ctx, rec)
		}
		w.res.Expired = append(w.res.Expired, rec.Record)
		return nil
	}
	return strange(call{script: w.store.scripts.sweep}, r)
}

// skip puts a member that cannot be handled off, so that it does not stop the rest.
func (w *sweep) skip(ctx context.Context, member string, cause error) error {
	s := w.store
	w.res.Skipped++
	s.metrics.skipped.WithLabelValues("corrupt").Inc()
	s.log.Error("the sweeper cannot handle a record: a person has to look", "member", member, "error", cause)
	_, err := s.run(ctx, call{
		script: s.scripts.postpone, op: reservation.OpExpire, stamp: w.stamp,
		args: []any{member, micros(postponement)},
	})
	return err
}

// claim rolls the pin of a claim forward: steps 2 and 3 from the record in the pin.
func (w *sweep) claim(ctx context.Context, rec stored) error {
	s := w.store
	return w.roll(ctx, "claim", rec.ID.String(), func() error {
		d, err := s.deduct(ctx, w.stamp, rec)
		if err != nil {
			return err
		}
		s.fail(FailClaimDeducted)
		if _, err = s.runLast(ctx, s.finishCall(finish{stamp: w.stamp, id: rec.ID, deduction: d})); err != nil {
			return err
		}
		_, err = s.deducted(rec, d)
		var conflict *reservation.ConflictError
		if errors.As(err, &conflict) {
			s.log.Warn("a pinned claim met its reservation's end: somebody has paid for it", "state", conflict.State, "shop", rec.Shop, "id", rec.ID)
			return nil
		}
		return err
	})
}

// adjustment rolls the pin of an adjustment forward.
func (w *sweep) adjustment(ctx context.Context, member string, r reply) error {
	m, err := r.fields(0)
	if err != nil {
		return err
	}
	d := decoder{m: m}
	shop := d.number("shop")
	adj := reservation.Adjustment{
		ID:     strings.TrimPrefix(member, adjMember+m["shop"]+":"),
		Bucket: reservation.Bucket{Shop: shop, Item: d.number("item"), Group: d.number("group")},
		Delta:  d.number("delta"), Force: m["force"] == "1",
	}
	if d.err != nil {
		return &reservation.CorruptError{Store: reservation.Redis, What: w.store.keys.prefix + member + " " + d.err.Error()}
	}
	return w.roll(ctx, "adjust", member, func() error {
		_, err := w.store.adjustPinned(ctx, w.stamp, adj)
		if refusedForGood(err) {
			w.store.log.Warn("the ledger refused a pinned adjustment: undone", "member", member, "error", err)
			return nil
		}
		return err
	})
}

// roll completes one pin. Where the ledger does not answer, the pin stays, and the sweep goes on without it.
func (w *sweep) roll(ctx context.Context, kind, member string, complete func() error) error {
	s := w.store
	if w.ledgerDown {
		w.res.Skipped++
		s.metrics.skipped.WithLabelValues("ledger").Inc()
		return nil
	}
	err := complete()
	var fence *reservation.FenceError
	var corrupt *reservation.CorruptError
	switch {
	case err == nil:
		w.res.RolledForward++
		s.metrics.rolled.WithLabelValues(kind).Inc()
		s.log.Info("an old pin was rolled forward", "kind", kind, "member", member)
		return nil
	case errors.As(err, &fence), errors.As(err, &corrupt), ctx.Err() != nil, fromRedis(err):
		return err
	}
	w.ledgerDown = ledgerSilent(err)
	w.res.Skipped++
	s.metrics.skipped.WithLabelValues("ledger").Inc()
	s.log.Warn("an old pin cannot be rolled forward yet", "kind", kind, "member", member, "error", err)
	return nil
}

func fromRedis(err error) bool {
	var unknown *reservation.UnknownOutcomeError
	var unavailable *reservation.UnavailableError
	return errors.As(err, &unknown) && unknown.Store == reservation.Redis ||
		errors.As(err, &unavailable) && unavailable.Store == reservation.Redis
}

func ledgerSilent(err error) bool {
	var unknown *reservation.UnknownOutcomeError
	var unavailable *reservation.UnavailableError
	return errors.As(err, &unknown) || errors.As(err, &unavailable)
}
