package shadow

import (
	"context"
	"time"
)

// pacer lets no more records a second be read than its rate. A nil one lets all.
type pacer struct {
	rate float64
	due  time.Time // when the next page may be read
}

func newPacer(rate int) *pacer {
	if rate <= 0 {
		return nil
	}
	return &pacer{rate: float64(rate), due: time.Now()}
}

// read notes what was read, and waits until the next may be.
func (p *pacer) read(ctx context.Context, records int) error {
	if p == nil || records == 0 {
		return nil
	}
	p.due = p.due.Add(time.Duration(float64(records) / p.rate * float64(time.Second)))
	wait := time.Until(p.due)
	if wait <= 0 {
		p.due = time.Now() // what was not used is not made up for
		return nil
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
