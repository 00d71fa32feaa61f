package shadow

import (
	"context"
	"maps"

	"golang.org/x/sync/errgroup"

	"github.com/twinhold/twinhold/reservation"
)

// partLimit is how many reservations a part of a whole round has: what a round keeps of one is gone with the next.
const partLimit = 10_000

// Part is a part of a round, and what it covered. It names all that it met.
type Part struct {
	Round
	// After and UpTo are the span that it came through; IDs, if not nil, the reservations that it looked at instead.
	After, UpTo reservation.ID
	IDs         []reservation.ID
	// LeftAlone were too young or under way; Young of them will be old enough in a moment.
	LeftAlone, Young []reservation.ID
	// Differ is what a person has to mend, if it lasts. Live is what Redis holds of each bucket.
	Differ []Difference
	Live   Live
	// Lacks is what each store lacks still, of what is not too young.
	Lacks Lacks
}

func (p *Part) skip(id reservation.ID, young bool) {
	p.Skipped++
	p.LeftAlone = append(p.LeftAlone, id)
	if young {
		p.Young = append(p.Young, id)
	}
}

// Walk brings the reservations of a span together. UpTo of the part is the span's where it came to its end, else the id
// after which the next part begins; also with an error.
func (c *CatchUp) Walk(ctx context.Context, fence reservation.Fence, s Span) (Part, error) {
	p := Part{Round: newRound(c.opt.Now()), After: s.After, UpTo: s.After}
	if !fence.Stage.DualWrite() {
		p.UpTo, p.Ended = s.UpTo, p.Began
		return p, nil
	}
	parts := newParts()
	upTo, err := c.walk(ctx, fence, s, func(ctx context.Context, worker int, v view) error {
		parts[worker].Walked++
		return c.reconcile(ctx, v, &parts[worker])
	})
	p.join(parts)
	p.Ended = c.opt.Now()
	if err == nil {
		p.UpTo = upTo
	}
	return p, err
}

// Look brings some reservations together, by their ids. One that neither store has is as it should be.
func (c *CatchUp) Look(ctx context.Context, fence reservation.Fence, ids []reservation.ID) (Part, error) {
	if !fence.Stage.DualWrite() {
		return Part{Round: newRound(c.opt.Now()), IDs: []reservation.ID{}}, nil
	}
	return c.lookAt(ctx, fence, ids, func(ctx context.Context, i int) (view, error) { return c.look(ctx, ids[i], fence) })
}

func (c *CatchUp) lookAt(ctx context.Context, fence reservation.Fence, ids []reservation.ID, look func(context.Context, int) (view, error)) (Part, error) {
	p := Part{Round: newRound(c.opt.Now()), IDs: ids}
	group, ctx := errgroup.WithContext(ctx)
	parts := newParts()
	for worker := range workers {
		group.Go(func() error {
			for i := worker; i < len(ids); i += workers {
				v, err := look(ctx, i)
				if err == nil && (v.bad != nil || v.any() != nil) {
					v.fence = fence
					parts[worker].Walked++
					err = c.reconcile(ctx, v, &parts[worker])
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := group.Wait()
	p.join(parts)
	p.Ended = c.opt.Now()
	return p, err
}

// newParts are what each worker has found.
func newParts() []Part {
	parts := make([]Part, workers)
	for n := range parts {
		parts[n].Repaired, parts[n].Live = map[string]int{}, Live{}
	}
	return parts
}

func (p *Part) join(parts []Part) {
	p.Live = Live{}
	for _, o := range parts {
		p.count(o.Round)
		p.Live.Add(o.Live)
		p.Lacks.Add(o.Lacks)
		p.Differ = append(p.Differ, o.Differ...)
		p.Repairs = append(p.Repairs, o.Repairs...)
		p.Left = append(p.Left, o.Left...)
		p.LeftAlone = append(p.LeftAlone, o.LeftAlone...)
		p.Young = append(p.Young, o.Young...)
	}
}

// sum adds a part of the round. It names as many as a round may.
func (r *Round) sum(o Round) {
	r.count(o)
	r.Repairs = append(r.Repairs, o.Repairs[:min(len(o.Repairs), maxNamed-len(r.Repairs))]...)
	named := min(len(o.Left), maxNamed-len(r.Left))
	r.Left = append(r.Left, o.Left[:named]...)
	r.LeftMore += len(o.Left) - named + o.LeftMore
}

func (r *Round) count(o Round) {
	r.Walked += o.Walked
	for was := range maps.Keys(o.Repaired) {
		r.Repaired[was] += o.Repaired[was]
	}
	r.Figures += o.Figures
	r.Drained += o.Drained
	r.Skipped += o.Skipped
	r.Unconfirmed += o.Unconfirmed
	r.Withheld += o.Withheld
	r.Unreadable += o.Unreadable
}
