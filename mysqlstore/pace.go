package mysqlstore

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// pace keeps the sweeps of this process to a number of rows a second. What callers wait for (the expiry of a bucket's due
// holds because they want units) is not kept to it.
type pace struct {
	rate   float64 // rows a second; below 0: no limit
	paused prometheus.Counter
	now    func() time.Time

	mu   sync.Mutex
	free time.Time // when the rows that were done so far are paid for
}

// pause waits until earlier rows are paid for, and puts so many more on the bill.
func (p *pace) pause(ctx context.Context, rows int) error {
	if p.rate < 0 || classOf(ctx) != backgroundClass {
		return nil
	}
	p.mu.Lock()
	now := p.now()
	if p.free.Before(now) {
		p.free = now
	}
	wait := p.free.Sub(now)
	p.free = p.free.Add(time.Duration(float64(rows) / p.rate * float64(time.Second)))
	p.mu.Unlock()
	if wait <= 0 {
		return nil
	}
	p.paused.Add(wait.Seconds())
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
