package podset_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/internal/podset/podsettest"
	"github.com/twinhold/twinhold/reservation"
)

// deaf is a mirror that hears nothing while it is told not to.
type deaf struct {
	next reservation.Mirror
	on   *atomic.Bool
}

func (d deaf) Mirror(ctx context.Context, st reservation.Stamp, op reservation.MirrorOp) (reservation.Judgement, error) {
	if d.on.Load() {
		return reservation.Judgement{}, &reservation.UnavailableError{Store: reservation.MySQL, Cause: errors.New("planted")}
	}
	return d.next.Mirror(ctx, st, op)
}

// Two rounds of catch-up at once tell of every repair while its gap is remembered: none is without an explanation.
func TestRoundsAtOnceExplainTheirRepairs(t *testing.T) {
	t.Parallel()
	pods, _ := podsettest.Pods(t, 1)
	var off atomic.Bool
	set := podsettest.Open(t, pods, podset.Options{Wrap: func(m reservation.Mirror) reservation.Mirror { return deaf{m, &off} }})
	p := set.Pods[0]
	const holds = 200
	stock(t, p, 1, holds)
	off.Store(true)
	for n := range holds {
		if _, err := p.Router.Reserve(t.Context(), shop, fmt.Sprint("k", n), []reservation.Line{{Item: 1, Group: 1, Quantity: 1}}, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Router.Queue().Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	off.Store(false)
	var repaired atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			round, err := p.CatchUp(t.Context(), 0)
			if err != nil {
				t.Error(err)
			}
			repaired.Add(int64(round.Total()))
		})
	}
	all.Wait()
	if err := p.Router.Engine().Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := p.Router.Engine().Tally(); got.Unexplained != 0 || repaired.Load() != holds {
		t.Errorf("%d repairs of %d gaps, %d without an explanation", repaired.Load(), holds, got.Unexplained)
	}
}
