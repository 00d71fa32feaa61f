package loadgen

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Fate is how a cart is meant to end.
type Fate uint8

// The fates. A cart whose reserve is rejected has none.
const (
	FateClaim Fate = iota + 1
	FateRelease
	FateExpire
)

// String gives the fate's name.
func (f Fate) String() string {
	switch f {
	case FateClaim:
		return "claim"
	case FateRelease:
		return "release"
	case FateExpire:
		return "expire"
	default:
		return fmt.Sprintf("fate(%d)", uint8(f))
	}
}

// Cart is one reservation of a plan.
type Cart struct {
	Shop    int64
	Key     string
	Invoice string // as recorded; the key of a request
	Copy    int    // from 1
	Lines   []reservation.Line
	TTL     time.Duration
	Fate    Fate
}

// Event is one call of a plan.
type Event struct {
	Op reservation.Op
	// Cart is the index of the cart; -1 in an adjustment.
	Cart   int
	Adjust reservation.Adjustment
	// Attempt is 2 in a retry: the same call again, with the same key or id, after the first was answered.
	Attempt int
	// After is the index of the event that must be answered first: the cart's one before; -1 if there is none.
	After int
	// At is the recorded time, which gives the order.
	At time.Time
}

// Plan is a workload, ready to be sent: the stock it needs, and its calls in order.
type Plan struct {
	Stock  []reservation.Stocking // in bucket order
	Carts  []Cart
	Events []Event
	Map    Map
	// Recorded says what became of the recording.
	Recorded Recorded
}

// Recorded counts what was read, for one copy.
type Recorded struct {
	Rows          int            `json:"rows"`
	Carts         int            `json:"carts"`
	Lines         int            `json:"lines"`         // of carts
	Cancellations int            `json:"cancellations"` // with goods in them
	NotGoods      map[string]int `json:"not_goods"`     // lines left out, by code
	// Empty counts invoices that had no goods at all; Split the further carts that carts of more than 1,000 lines
	// were cut into.
	Empty int `json:"empty"`
	Split int `json:"split"`
	// Released counts cancellations that released a cart; Returns and WriteOffs adjustments up and down.
	Released  int `json:"released"`
	Returns   int `json:"returns"`
	WriteOffs int `json:"write_offs"`
}

// PlanOptions says how a recording is sent.
type PlanOptions struct {
	// Shop gets the orders of a CSV, and requests that name no shop. Needed.
	Shop int64
	// Stock is how much there is of everything; the zero value is plenty.
	Stock Stock
	// Repeat is the number of copies that run at once, with distinct keys, over as many times the stock. Default 1.
	Repeat int
	// TTL goes with each reserve that has none of its own; ExpireTTL with those that are left to expire. 0 leaves it
	// to the target's default.
	TTL, ExpireTTL time.Duration
	// KeyPrefix stands before every key and adjustment id, so that a file can be sent twice to the same stores.
	KeyPrefix string
}

// maxRepeat bounds the copies, since a plan is in memory.
const maxRepeat = 10_000

func (o PlanOptions) withDefaults() PlanOptions {
	if o.Repeat == 0 {
		o.Repeat = 1
	}
	return o
}

func (o PlanOptions) validate() error {
	switch {
	case o.Shop <= 0:
		return fmt.Errorf("shop %d is not a shop id: use a positive whole number", o.Shop)
	case o.Repeat < 1 || o.Repeat > maxRepeat:
		return fmt.Errorf("repeat %d is out of range: use 1 to %d", o.Repeat, maxRepeat)
	case o.TTL < 0 || o.ExpireTTL < 0:
		return errors.New("a ttl is negative: use a positive duration, or 0 for the default")
	default:
		return nil
	}
}

// NewPlan lays out one or more recordings, which are sent together.
func NewPlan(o PlanOptions, recs ...Recording) (Plan, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return Plan{}, err
	}
	if len(recs) == 0 {
		return Plan{}, errors.New("there is no recording: name a file of orders")
	}
	err := distinctInvoices(recs)
	if err != nil {
		return Plan{}, err
	}
	b := &builder{opts: o, ids: newIDs(recs), plan: Plan{Recorded: Recorded{NotGoods: make(map[string]int)}}}
	for _, rec := range recs {
		b.plan.Recorded.Rows += rec.Rows
		for code, n := range rec.NotGoods {
			b.plan.Recorded.NotGoods[code] += n
		}
		if err := b.read(rec); err != nil {
			return Plan{}, err
		}
	}
	if len(b.steps) == 0 {
		return Plan{}, fmt.Errorf("%s: there is nothing to send: no invoice holds goods", recs[0].Name)
	}
	slices.SortStableFunc(b.steps, func(x, y step) int { return x.at.Compare(y.at) })
	b.plan.Map = b.ids.Map
	if b.plan.Stock, err = stockFor(b.steps, b.opts); err != nil {
		return Plan{}, err
	}
	for n := 1; n <= b.opts.Repeat; n++ {
		if err := b.lay(n); err != nil {
			return Plan{}, err
		}
	}
	return b.finish()
}

// distinctInvoices refuses the same day twice, whose keys would be the same.
func distinctInvoices(recs []Recording) error {
	seen := make(map[string]string)
	for _, rec := range recs {
		for _, inv := range rec.Invoices {
			if other, twice := seen[inv.Number]; twice {
				return &ParseError{File: rec.Name, Line: inv.Line, Reason: fmt.Sprintf("invoice %s is in %s too: name each day once (to send it more often, repeat it)", inv.Number, other)}
			}
		}
		for _, inv := range rec.Invoices {
			seen[inv.Number] = rec.Name
		}
	}
	return nil
}

// finish sorts the events, adds the retries, links each cart's events, and checks the whole.
func (b *builder) finish() (Plan, error) {
	slices.SortStableFunc(b.queue, func(x, y pending) int {
		return cmp.Or(x.At.Compare(y.At), cmp.Compare(x.order, y.order), cmp.Compare(x.nth, y.nth), cmp.Compare(x.copyNo, y.copyNo))
	})
	last := make([]int, len(b.plan.Carts))
	for i := range last {
		last[i] = -1
	}
	add := func(e Event) {
		e.After = -1
		if e.Cart >= 0 {
			e.After = last[e.Cart]
			last[e.Cart] = len(b.plan.Events)
		}
		b.plan.Events = append(b.plan.Events, e)
	}
	for _, p := range b.queue {
		add(p.Event)
		if p.Cart >= 0 && !p.exact && retried(p.Op, b.plan.Carts[p.Cart].Key) {
			again := p.Event
			again.Attempt = 2
			add(again)
		}
	}
	return b.plan, b.plan.validate()
}

// validate makes sure that no store will refuse a request of the plan for its form.
func (p *Plan) validate() error {
	keys := make(map[string]bool, len(p.Carts))
	for _, c := range p.Carts {
		ttl := max(c.TTL, time.Nanosecond)
		if _, err := reservation.NewRequest(c.Shop, c.Key, c.Lines, ttl, reservation.Limits{}); err != nil {
			return fmt.Errorf("cart %s: %w", c.Invoice, err)
		}
		id := strconv.FormatInt(c.Shop, 10) + ":" + c.Key
		if keys[id] {
			return fmt.Errorf("cart %s: two carts have the key %q", c.Invoice, c.Key)
		}
		keys[id] = true
	}
	for _, e := range p.Events {
		if e.Cart >= 0 {
			continue
		}
		if err := e.Adjust.Validate(); err != nil {
			return fmt.Errorf("adjustment %s: %w", e.Adjust.ID, err)
		}
	}
	return nil
}
