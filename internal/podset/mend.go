package podset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twinhold/twinhold/killswitch"
	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/shadow"
)

// MendOrder is what a person wants, and answers for.
type MendOrder struct {
	// ID or Bucket says what; the other one is zero.
	ID     reservation.ID
	Bucket reservation.Bucket
	// From is the store that is right: the other one is written.
	From           reservation.Truth
	Execute        bool
	Reason, Ticket string
}

// MendResult is what a mend found, and would do, or did.
type MendResult struct {
	Pod string `json:"pod"`
	Of  string `json:"of"`
	// From is the store that is taken to be right, To the one that is written.
	From string `json:"from"`
	To   string `json:"to"`
	// Evidence is what both stores have now.
	Evidence Evidence `json:"evidence"`
	// Would names what would be written; none: nothing is to be mended. Warnings are what it costs.
	Would    []string `json:"would"`
	Warnings []string `json:"warnings"`
	// Refused says why it cannot be done.
	Refused string `json:"refused,omitempty"`
	Done    bool   `json:"done"`
	// Forced is how many units were taken that were not there.
	Forced int64 `json:"forced"`
	// Left is what differs still, once it was written.
	Left string `json:"left,omitempty"`
	// Frozen are the buckets of it that are frozen for a difference; Unfrozen those that were let in again.
	Frozen   []string `json:"frozen,omitempty"`
	Unfrozen []string `json:"unfrozen,omitempty"`
}

// mending is one mend under way.
type mending struct {
	p       *Pod
	c       *shadow.CatchUp
	control *killswitch.Control
	order   MendOrder
	fence   reservation.Fence
	res     MendResult
	buckets []reservation.Bucket
	write   func(ctx context.Context, a reservation.AuditRecord) (forced int64, done bool, err error)
	// look says what is there still.
	look func(ctx context.Context) (left string, err error)
}

// Mend shows what two stores have of a reservation or a bucket that catch-up leaves to a person, and what would be written.
// With Execute it writes that, if all is still as it was shown, and lets its buckets in again that were frozen for it.
func (p *Pod) Mend(ctx context.Context, o MendOrder, by string) (MendResult, error) {
	m := &mending{p: p, order: o, res: MendResult{Pod: p.Config.ID, From: o.From.String(), To: other(o.From).String(), Would: []string{}, Warnings: []string{}}}
	var err error
	if m.fence, err = p.Redis.ReadFence(ctx); err != nil {
		return m.res, err
	}
	if !m.fence.Stage.DualWrite() || m.fence.Suspect {
		m.res.Refused = fmt.Sprintf("the pod is in %s: two stores are kept alike in shadow, handover and cutover, and not while Redis is restored", m.fence.Stage)
		return m.res, nil
	}
	if m.c, err = p.catchUp(0, false); err != nil {
		return m.res, err
	}
	if m.control, err = p.Control(ControlOptions{By: by}); err != nil {
		return m.res, err
	}
	if o.ID != (reservation.ID{}) {
		m.res.Of = "reservation " + o.ID.String()
		err = m.planRecord(ctx)
	} else {
		m.res.Of = "bucket " + o.Bucket.String()
		err = m.planBucket(ctx)
	}
	if err != nil || m.res.Refused != "" {
		return m.res, err
	}
	if err := m.frozen(ctx); err != nil || !o.Execute {
		return m.res, err
	}
	return m.res, m.execute(ctx)
}

func other(t reservation.Truth) reservation.Truth {
	if t == reservation.Redis {
		return reservation.MySQL
	}
	return reservation.Redis
}

func (m *mending) would(format string, args ...any) {
	m.res.Would = append(m.res.Would, fmt.Sprintf(format, args...))
}

func (m *mending) warn(format string, args ...any) {
	m.res.Warnings = append(m.res.Warnings, fmt.Sprintf(format, args...))
}

func (m *mending) refuse(format string, args ...any) { m.res.Refused = fmt.Sprintf(format, args...) }

// frozen finds which of the buckets are frozen for a difference.
func (m *mending) frozen(ctx context.Context) error {
	why, err := m.control.FrozenFor(ctx)
	if err != nil {
		return err
	}
	for _, b := range m.buckets {
		if rec, ok := why[b]; ok && isFrozen(m.fence, b) && m.froze(rec) {
			m.res.Frozen = append(m.res.Frozen, b.String())
		}
	}
	return nil
}

// froze tells whether a freeze was for this very difference.
func (m *mending) froze(rec reservation.AuditRecord) bool {
	rest, ok := strings.CutPrefix(rec.Reason, lastsReason)
	switch {
	case !ok:
		return false
	case m.order.ID != (reservation.ID{}):
		return strings.HasPrefix(rest, m.order.ID.String())
	default:
		return rest == string(shadow.DiffersCounters) || rest == string(shadow.DiffersHeld)
	}
}

func (m *mending) execute(ctx context.Context) error {
	if len(m.res.Would) > 0 {
		evidence, err := json.Marshal(m.res.Evidence)
		if err != nil {
			return err
		}
		a := reservation.AuditRecord{
			Pod: m.p.Config.ID, Action: reservation.ActionMend, By: m.control.By(), Reason: m.order.Reason, Ticket: m.order.Ticket,
			Detail: fmt.Sprintf("%s, %s from %s: %s; before %s", m.res.Of, m.res.To, m.res.From, strings.Join(m.res.Would, ", "), evidence),
		}
		forced, done, err := m.write(ctx, a)
		if err != nil {
			return err
		}
		if m.res.Forced = forced; !done {
			m.refuse("it has changed since it was shown: nothing was written; run it again")
			return nil
		}
		m.res.Done = true
	}
	left, err := m.look(ctx)
	if m.res.Left = left; err != nil || left != "" {
		return err
	}
	for _, b := range m.buckets {
		if !slices.Contains(m.res.Frozen, b.String()) {
			continue
		}
		if _, err := m.control.Freeze(ctx, b, false, "mended: "+m.order.Reason, m.order.Ticket); err != nil {
			return err
		}
		m.res.Unfrozen = append(m.res.Unfrozen, b.String())
	}
	return nil
}

// planRecord says what would be written of a reservation.
func (m *mending) planRecord(ctx context.Context) error {
	pair, err := m.c.Both(ctx, m.fence, m.order.ID)
	if err != nil {
		return err
	}
	r, q := pair.Redis, pair.MySQL
	m.res.Evidence = Evidence{What: pair.Differs, Redis: viewOf(r), MySQL: viewOf(q)}
	switch {
	case pair.Unreadable != nil:
		m.refuse("%v: what cannot be read cannot be compared; see docs/differences.md", pair.Unreadable)
		return nil //nolint:nilerr // it is told in the result
	case r == nil && q == nil:
		return reservation.ErrNotFound
	}
	for _, rec := range []*reservation.Record{r, q} {
		if rec != nil {
			for _, l := range rec.Lines {
				m.buckets = append(m.buckets, l.Bucket(rec.Shop))
			}
		}
	}
	slices.SortFunc(m.buckets, reservation.Bucket.Compare)
	m.buckets = slices.Compact(m.buckets)
	for _, b := range m.buckets {
		m.res.Evidence.Buckets = append(m.res.Evidence.Buckets, m.p.figuresOf(ctx, b))
	}
	m.look = func(ctx context.Context) (string, error) {
		now, err := m.c.Both(ctx, m.fence, m.order.ID)
		return now.Differs, err
	}
	switch {
	case pair.Differs == "" && (r == nil || q == nil || r.State != q.State):
		m.refuse("this is catch-up's to mend, and not a person's: its next turn, or full round, does it")
	case pair.Differs == "":
	case r.State == reservation.Claimed && (q == nil || q.State != reservation.Claimed):
		m.planClaim(*r, q)
	case r.Shop != q.Shop:
		m.refuse("the two records are of different shops: no command mends that; see docs/differences.md")
	default:
		m.planTerms(*r, *q)
	}
	return nil
}

// planTerms: the same state, other terms.
func (m *mending) planTerms(r, q reservation.Record) {
	from, to := r, q
	if m.order.From == reservation.MySQL {
		from, to = q, r
	}
	if from.Key == "" { // it lost its key to a newer record
		from.Key = to.Key
	}
	if !slices.Equal(from.Lines, to.Lines) {
		m.would("lines %s become %s", linesText(to.Lines), linesText(from.Lines))
	}
	if from.Key != to.Key {
		m.would("key %q becomes %q", to.Key, from.Key)
	}
	if from.Hash != to.Hash {
		m.would("the request's hash %x becomes %x", to.Hash[:4], from.Hash[:4])
	}
	if !from.ExpiresAt.Equal(to.ExpiresAt) {
		m.would("expiry %s becomes %s", to.ExpiresAt.Format(time.RFC3339Nano), from.ExpiresAt.Format(time.RFC3339Nano))
	}
	if to.State.TakesUnits() {
		m.warnUnits(from, to)
	}
	m.write = func(ctx context.Context, a reservation.AuditRecord) (int64, bool, error) {
		if m.order.From == reservation.MySQL {
			return m.p.Redis.Mend(ctx, m.fence.Stamp, to, from, a)
		}
		return m.p.MySQL.Mend(ctx, m.fence.Stamp, to, from, a)
	}
}

// warnUnits says which units would be taken that are not there: a promise that is kept twice stays one.
func (m *mending) warnUnits(from, to reservation.Record) {
	has := map[reservation.Bucket]int64{}
	for _, l := range to.Lines {
		has[l.Bucket(to.Shop)] = l.Quantity
	}
	for _, l := range from.Lines {
		b := l.Bucket(from.Shop)
		more := l.Quantity - has[b]
		for _, v := range m.res.Evidence.Buckets {
			f := v.Redis
			if m.order.From == reservation.Redis {
				f = v.MySQL
			}
			if v.Bucket == b.String() && f != nil && more > max(0, f.Available) {
				m.warn("bucket %s: %d more units are taken in %s, and %d are available: %d are promised twice, and stay so", b, more, m.res.To, f.Available, more-max(0, f.Available))
			}
		}
	}
}

// planClaim: claimed in Redis, and the ledger lacks its entry.
func (m *mending) planClaim(r reservation.Record, q *reservation.Record) {
	if m.order.From == reservation.MySQL {
		m.refuse("it is claimed in Redis, and somebody was told so: a claim is not taken back; mend it --from redis, which deducts it in the ledger")
		return
	}
	is := "unknown"
	if q != nil {
		is = q.State.String()
	}
	m.would("%s in MySQL becomes claimed, and the ledger deducts %s", is, linesText(r.Lines))
	for _, l := range r.Lines {
		for _, v := range m.res.Evidence.Buckets {
			b := l.Bucket(r.Shop)
			if v.Bucket == b.String() && v.MySQL != nil && v.MySQL.OnHand < l.Quantity {
				m.warn("bucket %s: on_hand is %d, the claim wants %d: the ledger will refuse it, and the buyer has to be refunded", b, v.MySQL.OnHand, l.Quantity)
			}
		}
	}
	m.write = func(ctx context.Context, a reservation.AuditRecord) (int64, bool, error) { return m.deduct(ctx, r, a) }
}

// deduct is the ledger's half of the claim. Redis is given the ledger's figures, as for every claim.
func (m *mending) deduct(ctx context.Context, r reservation.Record, a reservation.AuditRecord) (int64, bool, error) {
	pin := r
	pin.State = reservation.Claiming
	d, err := m.p.MySQL.Deduct(ctx, m.fence.Stamp, reservation.Pin{Record: pin})
	if err != nil {
		return 0, false, err
	}
	a.Detail += fmt.Sprintf("; the ledger says %s", d.State)
	if err := m.p.MySQL.Note(ctx, m.fence.Stamp, a); err != nil {
		return 0, true, err
	}
	if d.State != reservation.Claimed {
		m.warn("the ledger says %s: the claim could not be deducted, and what Redis told the buyer does not hold", d.State)
	}
	var figs []reservation.Figures
	for _, l := range r.Lines {
		f, err := m.p.MySQL.Availability(ctx, l.Bucket(r.Shop))
		if err != nil {
			return 0, true, err
		}
		figs = append(figs, reservation.Figures{Bucket: f.Bucket, OnHand: f.OnHand, Version: f.Version})
	}
	_, err = m.p.Redis.ApplyFigures(ctx, m.fence.Stamp, figs, false)
	return 0, true, err
}

func linesText(lines []reservation.Line) string {
	parts := make([]string, len(lines))
	for i, l := range lines {
		parts[i] = fmt.Sprintf("%d:%d x %d", l.Item, l.Group, l.Quantity)
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// errMoved: a bucket is not quiet.
var errMoved = errors.New("the bucket moves while it is counted: freeze it first")
