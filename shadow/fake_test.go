package shadow

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// fake is one store in memory: what these tests need of either side. It follows by the merge rule and compares what a
// write expects. The real servers have tests of their own.
type fake struct {
	mu      sync.Mutex
	as      reservation.Truth
	fence   reservation.Fence
	records map[reservation.ID]reservation.Record
	figs    map[reservation.Bucket]reservation.Figures
	beats   []reservation.Heartbeat
	// between is run once before the next write, as somebody else's.
	between func()
	// broken makes every write fail.
	broken     error
	writes     int
	ops        []reservation.MirrorOp
	changesFor []reservation.ID
	restoring  bool
}

var (
	_ RedisSide       = (*fake)(nil)
	_ MySQLSide       = (*fake)(nil)
	_ RestorableRedis = (*fake)(nil)
	_ RestoreSource   = (*fake)(nil)
)

func newFake(as reservation.Truth, st reservation.Stamp, recs ...reservation.Record) *fake {
	f := &fake{as: as, fence: reservation.Fence{Stamp: st}, records: map[reservation.ID]reservation.Record{}, figs: map[reservation.Bucket]reservation.Figures{}}
	for _, r := range recs {
		f.records[r.ID] = r
	}
	return f
}

func (f *fake) Whole(_ context.Context, st reservation.Stamp) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fence.Stamp == st {
		f.fence.Whole = st.Epoch
	}
	return nil
}

func (f *fake) Walk(_ context.Context, after reservation.ID, limit int) ([]reservation.Record, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.page(after, limit, func(reservation.Record) bool { return true }), nil
}

func (f *fake) page(after reservation.ID, limit int, keep func(reservation.Record) bool) []reservation.Record {
	var out []reservation.Record
	for _, r := range f.records {
		if bytes.Compare(r.ID[:], after[:]) > 0 && keep(r) {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b reservation.Record) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	return out[:min(limit, len(out))]
}

func (f *fake) Mirror(_ context.Context, st reservation.Stamp, op reservation.MirrorOp) (reservation.Judgement, error) {
	if f.between != nil {
		between := f.between
		f.between = nil
		between()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ops = append(f.ops, op)
	if f.as == reservation.Redis && op.Record.State == reservation.Claimed && len(op.Changes) == 0 {
		return reservation.Judgement{}, &reservation.InvalidError{Field: "changes", Reason: "are missing"}
	}
	if f.broken != nil {
		return reservation.Judgement{}, f.broken
	}
	if st.Epoch < f.fence.Epoch && !f.restoring {
		return reservation.Judgement{}, &reservation.FenceError{Store: f.as, Verdict: reservation.Stale, Caller: st, Fence: f.fence}
	}
	return f.store(st, op), nil
}

func (f *fake) store(st reservation.Stamp, op reservation.MirrorOp) reservation.Judgement {
	have := f.records[op.Record.ID]
	if op.Expect != nil && *op.Expect != have.State {
		return reservation.Judgement{State: have.State}
	}
	truth, mirror := op.Record.State, have.State
	if f.as == st.Stage.Truth() {
		truth, mirror = mirror, truth
	}
	want := reservation.Merge(truth, mirror)
	if op.Adopt { // as Redis does it: then the operation is the truth's
		want = reservation.Merge(op.Record.State, have.State)
	}
	if want == have.State {
		return reservation.Judgement{State: want}
	}
	rec := op.Record
	rec.State, rec.Marked = want, have.Marked
	f.records[rec.ID] = rec
	f.writes++
	return reservation.Judgement{State: want, Record: &rec, Stored: true}
}

func (f *fake) ApplyFigures(_ context.Context, _ reservation.Stamp, figs []reservation.Figures, _ bool) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, fig := range figs {
		if have, ok := f.figs[fig.Bucket]; !ok || have.Version < fig.Version {
			f.figs[fig.Bucket] = fig
			n++
		}
	}
	return n, nil
}

func (f *fake) Availability(_ context.Context, b reservation.Bucket) (reservation.Availability, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fig, ok := f.figs[b]
	if !ok {
		return reservation.Availability{}, &reservation.UnknownBucketError{Bucket: b}
	}
	a := reservation.Availability{Bucket: b, Available: fig.OnHand, OnHand: fig.OnHand, Version: fig.Version}
	for _, r := range f.records {
		for _, l := range r.Lines {
			if r.State.TakesUnits() && b == (reservation.Bucket{Shop: r.Shop, Item: l.Item, Group: l.Group}) {
				a.Available, a.Held = a.Available-l.Quantity, a.Held+l.Quantity
			}
		}
	}
	return a, nil
}

func (f *fake) Figures(_ context.Context, after reservation.Bucket, limit int) ([]reservation.Figures, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []reservation.Figures
	for b, fig := range f.figs {
		if b.Compare(after) > 0 {
			out = append(out, fig)
		}
	}
	slices.SortFunc(out, func(a, b reservation.Figures) int { return a.Bucket.Compare(b.Bucket) })
	return out[:min(limit, len(out))], nil
}

func (f *fake) ChangesOf(_ context.Context, shop int64, id reservation.ID) ([]reservation.Change, error) {
	f.changesFor = append(f.changesFor, id)
	return []reservation.Change{{Bucket: reservation.Bucket{Shop: shop, Item: 1, Group: 1}, Delta: -1, Version: 2}}, nil
}

func (f *fake) Mark(_ context.Context, _ reservation.Stamp, id reservation.ID) error {
	r := f.records[id]
	r.Marked = true
	f.records[id] = r
	return nil
}

func (f *fake) Marked(_ context.Context, after reservation.ID, limit int) ([]reservation.Record, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.page(after, limit, func(r reservation.Record) bool { return r.Marked }), nil
}

func (f *fake) Unmark(_ context.Context, _ reservation.Stamp, id reservation.ID, expect reservation.State) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.records[id]
	if !r.Marked || r.State != expect {
		return false, nil
	}
	r.Marked = false
	f.records[id] = r
	return true, nil
}

func (f *fake) MarksDebt(ctx context.Context) (reservation.Debt, int64, error) {
	all, err := f.Marked(ctx, reservation.ID{}, len(f.records))
	return reservation.Debt{}, int64(len(all)), err
}

func (f *fake) ReadFence(context.Context) (reservation.Fence, error) { return f.fence, nil }

func (f *fake) Raise(_ context.Context, st reservation.Stamp, _ *reservation.AuditRecord) (reservation.Fence, error) {
	if st.Epoch > f.fence.Epoch {
		f.fence.Stamp = st
	}
	return f.fence, nil
}

func (f *fake) Routers(context.Context, time.Duration) ([]reservation.Heartbeat, error) {
	return f.beats, nil
}

func (f *fake) BeginRestore(_ context.Context, _ reservation.Stamp, wipe bool) (reservation.Restoring, error) {
	if f.restoring {
		return nil, reservation.ErrRestoring
	}
	f.restoring = true
	r := &fakeRestoring{fake: f, seen: f.fence}
	if wipe {
		f.records, f.figs = map[reservation.ID]reservation.Record{}, map[reservation.Bucket]reservation.Figures{}
	}
	return r, nil
}

type fakeRestoring struct {
	*fake
	seen reservation.Fence
}

func (r *fakeRestoring) Seen() reservation.Fence { return r.seen }

func (r *fakeRestoring) ApplyFigures(ctx context.Context, figs []reservation.Figures) error {
	_, err := r.fake.ApplyFigures(ctx, reservation.Stamp{}, figs, true)
	return err
}

func (r *fakeRestoring) MirrorAll(ctx context.Context, st reservation.Stamp, ops []reservation.MirrorOp) (js []reservation.Judgement, errs []error) {
	for _, op := range ops {
		j, err := r.Mirror(ctx, st, op)
		js, errs = append(js, j), append(errs, err)
	}
	return js, errs
}

func (r *fakeRestoring) Finish(_ context.Context, to reservation.Stamp, killed string, _ reservation.AuditRecord) (reservation.Fence, error) {
	f := r.seen
	if to.Epoch <= f.Epoch {
		return f, &reservation.InvalidError{Field: "fence", Reason: "is not above what was there"}
	}
	f.Stamp, f.Suspect, f.Incarnation, f.IncarnationEpoch = to, false, f.Incarnation+1, to.Epoch
	if killed != "" {
		f.Killed, f.Latch = true, killed
	}
	r.restoring, r.fence = false, f
	return f, nil
}

func (r *fakeRestoring) Abandon(context.Context) error {
	r.restoring = false
	return nil
}

// record makes a reservation of one piece.
func record(t testing.TB, s reservation.State, change ...func(*reservation.Record)) reservation.Record {
	t.Helper()
	id, err := reservation.NewID()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().UTC().Truncate(time.Microsecond)
	r := reservation.Record{
		ID: id, Shop: 1, Key: id.String(), Lines: []reservation.Line{{Item: 1, Group: 1, Quantity: 1}}, Outcome: reservation.Granted,
		State: s, Epoch: 3, CreatedAt: now.Add(-time.Hour), ExpiresAt: now.Add(time.Hour), PurgeAt: now.Add(2 * time.Hour),
	}
	if s == reservation.Rejected {
		r.Outcome = reservation.RejectedShort
	}
	for _, f := range change {
		f(&r)
	}
	return r
}

func isMarked(r *reservation.Record) { r.Marked = true }

func was(r reservation.Record, s reservation.State) reservation.Record {
	r.State, r.Marked = s, false
	return r
}
