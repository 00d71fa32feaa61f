package bench

import (
	"context"
	"errors"
	"fmt"
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
	for round := range r.o.Rounds {
		turns := []func() error{
			func() error { return r.turn(ctx, round, alone, both(reserveRate, 0)[:1]) },
			func() error { return r.turn(ctx, round, beside, both(reserveRate, claimRate)) },
		}
		if round%2 == 1 {
			turns[0], turns[1] = turns[1], turns[0]
		}
		for _, turn := range turns {
			if err := turn(); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *run) turn(ctx context.Context, round int, e *entrant, loads []Load) error {
	r.o.Progress(fmt.Sprintf("round %d of %d: %s", round+1, r.o.Rounds, e.scheme.name))
	m, err := r.measure(ctx, e, loads)
	if err != nil {
		return err
	}
	e.samples = append(e.samples, sampleOf(m))
	return nil
}
