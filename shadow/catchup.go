package shadow

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Side is a store as catch-up reads it.
type Side interface {
	reservation.Walker
	Get(ctx context.Context, shop int64, id reservation.ID) (reservation.Record, error)
}

// FigureCopy keeps a copy of the ledger's figures and is given newer ones.
type FigureCopy interface {
	ApplyFigures(ctx context.Context, st reservation.Stamp, figures []reservation.Figures, create bool) (applied int, err error)
}

// FigureSource walks the ledger.
type FigureSource interface {
	Figures(ctx context.Context, after reservation.Bucket, limit int) ([]reservation.Figures, error)
}

// CatchUp brings the mirror up to the truth: one full round on demand.
type CatchUp struct {
	Pod    string
	Truth  Side
	Mirror interface {
		Side
		reservation.Mirror
	}
	// Ledger and Copy bring Redis's copy of the ledger up to date; both may be nil.
	Ledger FigureSource
	Copy   FigureCopy
	// Settle: nothing younger is touched, so that a healthy flow sees no repair.
	Settle time.Duration
	// Grace is how long past its expiry a hold that the truth does not know is left alone. Default 1 min.
	Grace time.Duration
	// Page is how many records are read at a time. Default 500.
	Page   int
	Logger *slog.Logger
	Now    func() time.Time
}

// Round is what one round of catch-up found and did.
type Round struct {
	Began, Ended time.Time
	Walked       int
	// Repairs names each record that was written, Repaired counts them by what was wrong.
	Repairs []Repair
	// Repaired counts writes into the mirror, by what was wrong: lost, leaked, state, missing.
	Repaired map[string]int
	// Figures counts ledger figures that Redis's copy lacked.
	Figures int
	// Skipped counts records that are too young or under way.
	Skipped int
	// Left names what still differs: nothing here may be repaired without a person, or it changed meanwhile.
	Left []string
}

// Repair is one record that the mirror lacked, or had otherwise.
type Repair struct {
	Shop int64
	ID   reservation.ID
	// Was is lost (a live hold that the mirror lacked), leaked (a hold that it still had), missing (an ended one that it
	// lacked) or state.
	Was           string
	Truth, Mirror reservation.State // before; zero where the store did not know it
}

// Total is the number of repairs.
func (r Round) Total() int {
	n := r.Figures
	for _, v := range r.Repaired {
		n += v
	}
	return n
}

// Run walks both stores once.
func (c CatchUp) Run(ctx context.Context, st reservation.Stamp) (Round, error) {
	c.defaults()
	r := Round{Began: c.Now(), Repaired: map[string]int{}}
	truth := &cursor{walker: c.Truth, page: c.Page}
	mirror := &cursor{walker: c.Mirror, page: c.Page}
	for {
		t, err := truth.peek(ctx)
		if err != nil {
			return r, fmt.Errorf("catch-up of pod %s reads the truth: %w", c.Pod, err)
		}
		m, err := mirror.peek(ctx)
		if err != nil {
			return r, fmt.Errorf("catch-up of pod %s reads the mirror: %w", c.Pod, err)
		}
		if t == nil && m == nil {
			break
		}
		t, m = lower(t, m)
		truth.advance(t)
		mirror.advance(m)
		r.Walked++
		if err := c.reconcile(ctx, st, t, m, &r); err != nil {
			return r, err
		}
	}
	if err := c.figures(ctx, st, &r); err != nil {
		return r, err
	}
	r.Ended = c.Now()
	return r, nil
}

func (c *CatchUp) defaults() {
	if c.Page == 0 {
		c.Page = 500
	}
	if c.Grace == 0 {
		c.Grace = time.Minute
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
}

// lower keeps the record with the lower id, or both where they are the same reservation.
func lower(t, m *reservation.Record) (*reservation.Record, *reservation.Record) {
	if t == nil || m == nil {
		return t, m
	}
	switch bytes.Compare(t.ID[:], m.ID[:]) {
	case -1:
		return t, nil
	case 1:
		return nil, m
	default:
		return t, m
	}
}

// reconcile brings one reservation's mirror up to the truth. A broken record does not stop the rest; a mirror that
// does not answer does.
func (c CatchUp) reconcile(ctx context.Context, st reservation.Stamp, t, m *reservation.Record, r *Round) error {
	t, m, err := c.refresh(ctx, t, m)
	if err != nil {
		return fmt.Errorf("catch-up of pod %s: %w", c.Pod, err)
	}
	if t == nil && m == nil {
		return nil
	}
	want, wrong := c.plan(t, m)
	if wrong == "" {
		return nil
	}
	if want == nil {
		if wrong == skip {
			r.Skipped++
		} else {
			r.Left = append(r.Left, wrong)
		}
		return nil
	}
	expect := stateOf(m)
	want.Expect = &expect
	j, err := c.Mirror.Mirror(ctx, st, *want)
	switch {
	case err == nil && j.Stored:
		r.Repaired[wrong]++
		r.Repairs = append(r.Repairs, Repair{Shop: want.Record.Shop, ID: want.Record.ID, Was: wrong, Truth: stateOf(t), Mirror: expect})
		c.Logger.Info("catch-up repaired the mirror", "pod", c.Pod, "id", want.Record.ID, "was", wrong, "state", j.State.String())
		return nil
	case err == nil:
		r.Left = append(r.Left, fmt.Sprintf("%s: changed meanwhile (mirror has %s)", want.Record.ID, stateName(j.State)))
		return nil
	case unusable(err):
		return fmt.Errorf("catch-up of pod %s writes the mirror: %w", c.Pod, err)
	default:
		r.Left = append(r.Left, fmt.Sprintf("%s: %v", want.Record.ID, err))
		return nil
	}
}

func stateOf(r *reservation.Record) reservation.State {
	if r == nil {
		return 0
	}
	return r.State
}

// refresh looks again at a record that only one page held: the two pages were not read at the same instant.
func (c CatchUp) refresh(ctx context.Context, t, m *reservation.Record) (*reservation.Record, *reservation.Record, error) {
	switch {
	case t == nil:
		rec, err := c.Truth.Get(ctx, m.Shop, m.ID)
		return found(rec, err, m)
	case m == nil:
		rec, err := c.Mirror.Get(ctx, t.Shop, t.ID)
		mirror, truth, err := found(rec, err, t)
		return truth, mirror, err
	default:
		return t, m, nil
	}
}

func found(rec reservation.Record, err error, other *reservation.Record) (*reservation.Record, *reservation.Record, error) {
	switch {
	case err == nil:
		return &rec, other, nil
	case errors.Is(err, reservation.ErrNotFound):
		return nil, other, nil
	default:
		return nil, nil, err
	}
}

// unusable tells whether the mirror as a whole is the trouble, and not one record.
func unusable(err error) bool {
	var (
		una *reservation.UnavailableError
		unk *reservation.UnknownOutcomeError
		fen *reservation.FenceError
	)
	return errors.As(err, &una) || errors.As(err, &unk) || errors.As(err, &fen) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

const skip = "skip"

// plan says what the mirror lacks: the operation that mends it, and what was wrong. An operation of nil with a
// reason is a difference that is left, or (skip) a record that is not touched now.
func (c CatchUp) plan(t, m *reservation.Record) (*reservation.MirrorOp, string) {
	now := c.Now()
	switch {
	case t == nil:
		return c.planUnknown(m, now)
	case now.After(t.PurgeAt):
		return nil, skip
	case t.State == reservation.Claiming, t.State == reservation.Provisional, lastStep(t).After(now.Add(-c.Settle)):
		return nil, skip
	case m == nil:
		return opFor(t), missing(t)
	}
	target := reservation.Merge(t.State, m.State)
	switch {
	case target == m.State && target == t.State:
		return nil, differs(t, m)
	case target == m.State:
		return nil, fmt.Sprintf("%s: the truth has %s, the mirror %s", t.ID, t.State, m.State)
	case m.State.Live():
		return opFor(t), "leaked"
	case t.State.Live():
		return opFor(t), "lost"
	default:
		return opFor(t), "state"
	}
}

func missing(t *reservation.Record) string {
	if t.State.Live() {
		return "lost"
	}
	return "missing"
}

// differs compares two records of the same state; what it finds is for a person.
func differs(t, m *reservation.Record) string {
	switch {
	case t.Key != m.Key || t.Hash != m.Hash || t.Shop != m.Shop:
		return fmt.Sprintf("%s: the two records differ in key, hash or shop", t.ID)
	case len(t.Lines) != len(m.Lines):
		return fmt.Sprintf("%s: the two records differ in their lines", t.ID)
	case !t.ExpiresAt.Equal(m.ExpiresAt):
		return fmt.Sprintf("%s: expires %s in the truth, %s in the mirror", t.ID, t.ExpiresAt, m.ExpiresAt)
	}
	for i := range t.Lines {
		if t.Lines[i] != m.Lines[i] {
			return fmt.Sprintf("%s: the two records differ in their lines", t.ID)
		}
	}
	return ""
}

// planUnknown deals with a record that the truth does not know: nobody was promised it by the truth. A hold is left
// alone until its expiry and a grace have passed.
func (c CatchUp) planUnknown(m *reservation.Record, now time.Time) (*reservation.MirrorOp, string) {
	switch {
	case now.After(m.PurgeAt):
		return nil, skip
	case m.State.Live() && now.After(m.ExpiresAt.Add(c.Grace)):
		rec := *m
		rec.State, rec.ExpiredAt = reservation.Expired, now.UTC().Truncate(time.Microsecond)
		return opFor(&rec), "leaked"
	case m.State.Live():
		return nil, fmt.Sprintf("%s: the mirror holds it until %s, the truth does not know it", m.ID, m.ExpiresAt.Format(time.RFC3339))
	default:
		return nil, fmt.Sprintf("%s: %s in the mirror, unknown in the truth", m.ID, m.State)
	}
}

// opFor is the operation that brings a mirror to a record's present state.
func opFor(t *reservation.Record) *reservation.MirrorOp {
	op := &reservation.MirrorOp{Record: *t}
	switch t.State {
	case reservation.Rejected:
		op.Op, op.Decision = reservation.OpReserve, reservation.RejectedShort
	case reservation.Released:
		op.Op, op.Decision = reservation.OpRelease, reservation.ReleasedOK
	case reservation.Expired:
		op.Op, op.Decision = reservation.OpExpire, reservation.ExpiredOK
	case reservation.Claimed:
		op.Op, op.Decision = reservation.OpClaim, reservation.ClaimedOK
	case reservation.Refused:
		op.Op, op.Decision = reservation.OpClaim, reservation.RefundRequired
	case reservation.Provisional, reservation.Held, reservation.Claiming:
		op.Op, op.Decision = reservation.OpReserve, reservation.Granted
	}
	return op
}

func lastStep(r *reservation.Record) time.Time {
	last := r.CreatedAt
	for _, t := range []time.Time{r.PinnedAt, r.ReleasedAt, r.ExpiredAt, r.ClaimedAt} {
		if t.After(last) {
			last = t
		}
	}
	return last
}

func stateName(s reservation.State) string {
	if s == 0 {
		return "nothing"
	}
	return s.String()
}

// figures gives Redis every figure of the ledger; those that it has already are ignored by version.
func (c CatchUp) figures(ctx context.Context, st reservation.Stamp, r *Round) error {
	if c.Ledger == nil || c.Copy == nil {
		return nil
	}
	var after reservation.Bucket
	for {
		figs, err := c.Ledger.Figures(ctx, after, c.Page)
		if err != nil {
			return fmt.Errorf("catch-up of pod %s reads the ledger: %w", c.Pod, err)
		}
		if len(figs) == 0 {
			return nil
		}
		n, err := c.Copy.ApplyFigures(ctx, st, figs, true)
		if err != nil {
			return fmt.Errorf("catch-up of pod %s gives Redis the ledger's figures: %w", c.Pod, err)
		}
		r.Figures += n
		after = figs[len(figs)-1].Bucket
	}
}

// cursor pages through a store.
type cursor struct {
	walker reservation.Walker
	page   int
	buf    []reservation.Record
	after  reservation.ID
	end    bool
}

func (c *cursor) peek(ctx context.Context) (*reservation.Record, error) {
	if len(c.buf) == 0 && !c.end {
		recs, err := c.walker.Walk(ctx, c.after, c.page)
		if err != nil {
			return nil, err
		}
		c.buf, c.end = recs, len(recs) == 0
		if len(recs) > 0 {
			c.after = recs[len(recs)-1].ID
		}
	}
	if len(c.buf) == 0 {
		return nil, nil //nolint:nilnil // the end of the store is no error
	}
	return &c.buf[0], nil
}

func (c *cursor) advance(taken *reservation.Record) {
	if taken != nil {
		c.buf = c.buf[1:]
	}
}
