package conntag

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/prometheus/client_golang/prometheus"
)

// Options configure a Meter. Nothing is required.
type Options struct {
	// Registerer takes the metrics; nil: there are none, and Usage still works. The pod is the caller's label.
	Registerer prometheus.Registerer
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Meter counts by tag, over all connectors that it has wrapped.
type Meter struct {
	now     func() time.Time
	tags    *table
	metrics *metrics

	mu    sync.Mutex
	conns map[*conn]struct{}
}

// New makes a Meter and registers its metrics.
func New(o Options) (*Meter, error) {
	o = o.withDefaults()
	m := &Meter{now: o.Now, metrics: newMetrics(), conns: map[*conn]struct{}{}}
	m.tags = newTable(m.newTally, Untagged, Idle, Other, driverBegin, driverCommit, driverRollback, driverPing)
	if o.Registerer != nil {
		if err := o.Registerer.Register(m); err != nil {
			return nil, fmt.Errorf("conntag: metrics: %w", err)
		}
	}
	return m, nil
}

// Usage is what one tag has used.
type Usage struct {
	Tag        string
	Statements int64
	// Held is how long connections were out of the pool for this tag, Longest the longest such time in one piece:
	// from a statement's start to the next one's, or to the connection's return. Those that last are in both.
	Held, Longest time.Duration
	// InUse is how many connections the tag has now.
	InUse int
}

// Usage gives every tag that was used, the longest held first.
func (m *Meter) Usage() []Usage {
	inUse := m.settle()
	var all []Usage
	m.tags.each(func(t *tally) {
		u := Usage{
			Tag: t.name, Statements: t.statements.Load(), Held: time.Duration(t.held.Load()),
			Longest: time.Duration(t.longest.Load()), InUse: inUse[t],
		}
		if u.Statements > 0 || u.Held > 0 || u.InUse > 0 {
			all = append(all, u)
		}
	})
	slices.SortFunc(all, func(a, b Usage) int { return cmp.Or(cmp.Compare(b.Held, a.Held), cmp.Compare(a.Tag, b.Tag)) })
	return all
}

// Untagged is how many statements had no tag.
func (m *Meter) Untagged() int64 { return m.tags.find(Untagged).statements.Load() }

// settle puts the time up to now to the tags that hold connections, and gives how many each has. So what is read
// after it is whole, and never goes down.
func (m *Meter) settle() map[*tally]int {
	m.mu.Lock()
	conns := make([]*conn, 0, len(m.conns))
	for c := range m.conns {
		conns = append(conns, c)
	}
	m.mu.Unlock()
	inUse := map[*tally]int{}
	for _, c := range conns {
		if t := c.settle(); t != nil {
			inUse[t]++
		}
	}
	return inUse
}

func (m *Meter) add(c *conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.conns[c] = struct{}{}
}

func (m *Meter) remove(c *conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.conns, c)
}

// The numbers of MySQL's errors that have a class of their own.
const (
	erLockWaitTimeout = 1205
	erLockDeadlock    = 1213
)

// fail counts an error by its class.
func (t *tally) fail(err error) {
	var e *mysql.MySQLError
	switch {
	case errors.As(err, &e) && e.Number == erLockWaitTimeout:
		t.failed(ClassLockWait)
	case errors.As(err, &e) && e.Number == erLockDeadlock:
		t.failed(ClassDeadlock)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		t.failed(ClassCancelled)
	default:
		t.failed(ClassOther)
	}
}
