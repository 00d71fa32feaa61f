package legacyredis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/reservation"
)

const (
	wipeBatch = 500
	heldBatch = 200
)

// restoring is a restore of a pod's Redis that is under way.
type restoring struct {
	store *Store
	token string
	seen  reservation.Fence
}

var _ reservation.Restoring = (*restoring)(nil)

// BeginRestore begins a restore of this Redis from MySQL: from here on it is suspect, and takes nobody's writes but the
// restore's. seen is the highest fence that the caller knows of: where this Redis has that one, or a higher, and is
// not suspect, there is nothing to restore, and reservation.ErrHealthy is given. With wipe a healthy one is taken too,
// and all of the pod's data is removed first; fence, latch, heartbeats and audit stay.
//
// One at a time: reservation.ErrRestoring while another's lease runs, which each of its writes renews.
func (s *Store) BeginRestore(ctx context.Context, seen reservation.Stamp, wipe bool) (reservation.Restoring, error) {
	v := &restoring{store: s, token: token()}
	c := call{script: s.scripts.restoreBegin, op: reservation.OpReserve, stamp: seen, args: []any{v.token, flag(wipe)}}
	r, err := s.run(ctx, c)
	switch {
	case err != nil:
		return nil, err
	case r.status == "HEALTHY":
		return nil, reservation.ErrHealthy
	case r.status != "FENCE":
		return nil, strange(c, r)
	}
	if v.seen, err = parseFence(r); err != nil {
		return nil, err
	}
	if wipe {
		if err := v.wipe(ctx); err != nil {
			return nil, errors.Join(err, v.Abandon(context.WithoutCancel(ctx)))
		}
	}
	return v, nil
}

// call is one write of the restore.
func (v *restoring) call(script script, args ...any) call {
	return call{script: script, op: reservation.OpReserve, restore: v.token, args: args}
}

// wipe removes the pod's data, in pages.
func (v *restoring) wipe(ctx context.Context) error {
	s := v.store
	return s.scan(ctx, func(keys []string) (bool, error) {
		var data []any
		for _, key := range keys {
			if !s.keys.stays(key) {
				data = append(data, key)
			}
		}
		for batch := range slices.Chunk(data, wipeBatch) {
			if _, err := s.run(ctx, v.call(s.scripts.restoreWipe, batch...)); err != nil {
				return false, err
			}
		}
		return true, nil
	})
}

// Seen is the fence as it was found.
func (v *restoring) Seen() reservation.Fence { return v.seen }

// ApplyFigures makes the buckets whole, by what the ledger says, whatever is there.
func (v *restoring) ApplyFigures(ctx context.Context, figs []reservation.Figures) error {
	for batch := range slices.Chunk(figs, figuresBatch) {
		if _, err := v.store.run(ctx, v.call(v.store.scripts.ledger, "1", packFigures(batch))); err != nil {
			return err
		}
	}
	return nil
}

// Mirror is the store's Mirror, past the fence. The stage of st says whose truth counts. A claimed record needs no
// changes here: the figures have them.
func (v *restoring) Mirror(ctx context.Context, st reservation.Stamp, op reservation.MirrorOp) (reservation.Judgement, error) {
	c, err := v.store.mirrorCall(st, op)
	if err != nil {
		return reservation.Judgement{}, err
	}
	c.restore = v.token
	return v.store.mirror(ctx, c, op)
}

// mirrorBatch is how many operations travel together: Redis answers them in one go.
const mirrorBatch = 200

// MirrorAll is Mirror for many.
func (v *restoring) MirrorAll(ctx context.Context, st reservation.Stamp, ops []reservation.MirrorOp) (js []reservation.Judgement, errs []error) {
	js, errs = make([]reservation.Judgement, len(ops)), make([]error, len(ops))
	for from := 0; from < len(ops); from += mirrorBatch {
		v.mirrorSome(ctx, st, ops[from:min(from+mirrorBatch, len(ops))], js[from:], errs[from:])
	}
	return js, errs
}

func (v *restoring) mirrorSome(ctx context.Context, st reservation.Stamp, ops []reservation.MirrorOp, js []reservation.Judgement, errs []error) {
	calls, at := make([]call, 0, len(ops)), make([]int, 0, len(ops))
	for i, op := range ops {
		c, err := v.store.mirrorCall(st, op)
		if err != nil {
			errs[i] = err
			continue
		}
		c.restore = v.token
		calls, at = append(calls, c), append(at, i)
	}
	for n, o := range v.store.runAll(ctx, calls) {
		i := at[n]
		js[i], errs[i] = v.store.judged(calls[n], ops[i], o.reply, o.err)
	}
}

// Walk pages through what this Redis still knows, past the fence.
func (v *restoring) Walk(ctx context.Context, after reservation.ID, limit int) ([]reservation.Record, error) {
	return v.store.walk(ctx, after, limit, lookOn)
}

// Finish counts what is held from the records, so that the counters fit them whatever was lost, and then sets the
// fence: the last step, and one.
func (v *restoring) Finish(ctx context.Context, to reservation.Stamp, killed string, a reservation.AuditRecord) (reservation.Fence, error) {
	s := v.store
	if !to.Stage.Valid() || to.Epoch <= v.seen.Epoch {
		return reservation.Fence{}, &reservation.InvalidError{
			Field: "fence", Reason: fmt.Sprintf("needs a stage, and an epoch above %d", v.seen.Epoch),
		}
	}
	body, err := s.auditBody(a, reservation.ActionRestore)
	if err != nil {
		return reservation.Fence{}, err
	}
	if err := v.recount(ctx); err != nil {
		return reservation.Fence{}, err
	}
	c := v.call(s.scripts.restoreEnd, strconv.FormatUint(to.Epoch, 10), to.Stage.String(), flag(killed != ""), killed, body)
	return s.fence(ctx, c)
}

// recount sets what is held in every bucket to what its records and pins hold. Nobody else writes meanwhile.
func (v *restoring) recount(ctx context.Context) error {
	s := v.store
	held := map[string]int64{}
	err := s.scan(ctx, func(keys []string) (bool, error) { return true, s.countHeld(ctx, keys, held) })
	if err != nil {
		return err
	}
	args := make([]any, 0, 2*len(held))
	for name, n := range held {
		args = append(args, name, strconv.FormatInt(n, 10))
	}
	for batch := range slices.Chunk(args, 2*heldBatch) {
		r, err := s.run(ctx, v.call(s.scripts.restoreHeld, batch...))
		if err != nil {
			return err
		}
		for i := range r.vals {
			if held[r.text(i)] > 0 {
				s.log.Error("a restored reservation holds units of a bucket that the ledger does not know", "bucket", r.text(i), "held", held[r.text(i)])
			}
		}
	}
	return nil
}

// countHeld adds up what one page of keys holds, and notes the buckets that it names.
func (s *Store) countHeld(ctx context.Context, page []string, held map[string]int64) error {
	var hashes []string
	for _, key := range page {
		kind, rest := s.keys.split(key)
		switch kind {
		case "res", "adj":
			hashes = append(hashes, key)
		case "onhand":
			held[rest] += 0
		}
	}
	return s.ask(ctx, "recount", func(ctx context.Context) error {
		sums := map[string]int64{}
		pipe := s.client.Pipeline()
		cmds := make([]*redis.SliceCmd, len(hashes))
		for i, key := range hashes {
			cmds[i] = pipe.HMGet(ctx, key, "state", "refuse", "shop", "lines", "item", "group", "delta")
		}
		_, _ = pipe.Exec(ctx) // each command has its own error
		for i, key := range hashes {
			vals, err := cmds[i].Result()
			if err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
				return err
			}
			if err != nil || !addHeld(sums, texts(vals)) {
				s.log.Error("a key cannot be read: what it holds is not counted, a person has to look", "key", key)
			}
		}
		for name, n := range sums {
			held[name] += n
		}
		return nil
	})
}

func texts(vals []any) []string {
	out := make([]string, len(vals))
	for i, v := range vals {
		out[i], _ = v.(string)
	}
	return out
}

// addHeld adds what a reservation (state, refuse, shop, lines) or a pinned adjustment (shop, item, group, delta) holds. It
// tells whether it could be read.
func addHeld(sums map[string]int64, f []string) bool {
	state, refuse, shop, lines, item, group, delta := f[0], f[1], f[2], f[3], f[4], f[5], f[6]
	if state == "" {
		n, err := strconv.ParseInt(delta, 10, 64)
		if err == nil && n < 0 {
			sums[shop+":"+item+":"+group] -= n
		}
		return err == nil
	}
	st, err := reservation.ParseState(state)
	if err != nil {
		return false
	}
	if !st.TakesUnits() || st == reservation.Claiming && refuse == "1" {
		return true
	}
	d := decoder{m: map[string]string{"lines": lines}}
	for _, l := range d.tuples("lines", 3) {
		sums[fmt.Sprintf("%s:%d:%d", shop, l[0], l[1])] += l[2]
	}
	return d.err == nil
}

// Abandon gives the restore up: Redis stays suspect, and another restore can begin.
func (v *restoring) Abandon(ctx context.Context) error {
	c := v.call(v.store.scripts.restoreAbandon)
	c.readOnly = true
	_, err := v.store.run(ctx, c)
	return err
}
