package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// shareOfMaximum is the rate at which neighbours are measured: a third of what they can do together.
const shareOfMaximum = 3

// neighbours measures how much claims slow reserves down: both together at a third of the rates that they reach
// together, against the reserves alone at theirs. Both are an open loop.
func (r *run) neighbours(ctx context.Context) error {
	if len(r.entrants) != 2 {
		return errors.New("neighbours needs both of its schemes")
	}
	alone, beside := r.entrants[0], r.entrants[1]
	reservers := beside.callers / 2
	both := func(reserveRate, claimRate float64) []Load {
		return []Load{
			{Kind: reserveLoad, Callers: reservers, Rate: reserveRate},
			{Kind: claimLoad, Callers: beside.callers - reservers, Rate: claimRate},
		}
	}
	r.o.Progress("finding the maximum of reserves and claims together")
	m, err := r.measure(ctx, beside, both(0, 0))
	if err != nil {
		return err
	}
	reserveRate, claimRate := m.loads[0].opsS/shareOfMaximum, m.loads[1].opsS/shareOfMaximum
	r.o.Progress(fmt.Sprintf("a third of it: %.0f reserves and %.0f claims a second", reserveRate, claimRate))
	return r.takeTurns(ctx, turn{alone, both(reserveRate, 0)[:1]}, turn{beside, both(reserveRate, claimRate)})
}

// turn is what a scheme does in each round.
type turn struct {
	*entrant
	loads []Load
}

// takeTurns measures two schemes in alternating pairs.
func (r *run) takeTurns(ctx context.Context, a, b turn) error {
	for round := range r.o.Rounds {
		turns := []turn{a, b}
		if round%2 == 1 {
			slices.Reverse(turns)
		}
		for _, t := range turns {
			r.o.Progress(fmt.Sprintf("round %d of %d: %s", round+1, r.o.Rounds, t.scheme.name))
			m, err := r.measure(ctx, t.entrant, t.loads)
			if err != nil {
				return err
			}
			t.samples = append(t.samples, sampleOf(m))
		}
	}
	return nil
}
