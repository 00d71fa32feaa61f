package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// class is whose work holds a connection. Each class has a number of connections of its own, so that one of which the
// work hangs does not take those of the others.
type class uint8

const (
	truthClass      class = iota // what somebody waits for whom this store answers, and what that needs
	mirrorClass                  // operations of the other store, and the looks that they need
	refillClass                  // pools
	backgroundClass              // sweeps, purges, walks
	classes
)

func (c class) String() string {
	switch c {
	case truthClass:
		return "truth"
	case mirrorClass:
		return "mirror"
	case refillClass:
		return "refill"
	default:
		return "background"
	}
}

// Budgets are the connections that each class of work may hold at once, of MaxOpenConns. A zero takes the default.
type Budgets struct {
	// Truth is for operations that this store decides, for the ledger's part of those that Redis decides, and for the
	// fence. Default all connections.
	Truth int
	// Mirror is for what Redis has carried out. Default three in eight.
	Mirror int
	// Refill is for the refilling of pools, also where a caller waits for it. Default one in eight.
	Refill int
	// Background is for sweeps, purges, walks and inspections. Default one in eight.
	Background int
}

func (b Budgets) withDefaults(conns int) Budgets {
	or := func(n *int, fallback int) {
		if *n == 0 {
			*n = max(1, fallback)
		}
	}
	or(&b.Truth, conns)
	or(&b.Mirror, conns*3/8)
	or(&b.Refill, conns/8)
	or(&b.Background, conns/8)
	return b
}

// minShared is the number of connections from which on some can be left to the truth.
const minShared = 4

func (b Budgets) validate(conns int) error {
	var errs []error
	for c, n := range b.all() {
		if n < 1 || n > conns {
			errs = append(errs, fmt.Errorf("Budgets: %d connections for %s are out of range: use 1 to MaxOpenConns, which is %d", n, class(c), conns))
		}
	}
	if rest := b.Mirror + b.Refill + b.Background; conns >= minShared && rest >= conns {
		errs = append(errs, fmt.Errorf("Budgets: mirror, refill and background may hold %d of %d connections: leave some to the truth", rest, conns))
	}
	return errors.Join(errs...)
}

func (b Budgets) all() [classes]int { return [classes]int{b.Truth, b.Mirror, b.Refill, b.Background} }

// budget bounds the connections of one pool that each class holds. A channel is as deep as the class's bound: it holds a
// token for each connection.
type budget struct {
	s     *Store
	slots [classes]chan struct{}
}

// newBudget is the budgets' part in a pool that has so many of the store's connections.
func newBudget(s *Store, conns int) *budget {
	b := &budget{s: s}
	for c, n := range s.opts.Budgets.all() {
		b.slots[c] = make(chan struct{}, max(1, n*conns/s.opts.MaxOpenConns))
	}
	return b
}

// payer is who pays for a connection: a class, which has paid already if it holds one.
type payer struct {
	class class
	holds bool
}

type payerKey struct{}

// inClass has what is done under this context count as work of that class.
func inClass(ctx context.Context, c class) context.Context {
	return context.WithValue(ctx, payerKey{}, payer{class: c})
}

func classOf(ctx context.Context) class {
	p, _ := ctx.Value(payerKey{}).(payer)
	return p.class
}

// hold is enter for work that must have its connection before it takes a turn for which others wait. What is done under
// the context that it gives does not ask again, as long as it is of the same class.
func (b *budget) hold(ctx context.Context) (context.Context, func(), error) {
	leave, err := b.enter(ctx)
	return context.WithValue(ctx, payerKey{}, payer{class: classOf(ctx), holds: true}), leave, err
}

// enter waits until the class of the context may hold one more connection.
func (b *budget) enter(ctx context.Context) (leave func(), err error) {
	p, _ := ctx.Value(payerKey{}).(payer)
	if p.holds {
		return func() {}, nil
	}
	c := p.class
	leave = func() { <-b.slots[c] }
	select {
	case b.slots[c] <- struct{}{}:
		return leave, nil
	default:
	}
	began := b.s.opts.Now()
	defer func() {
		b.s.metrics.budgetWait.WithLabelValues(c.String()).Observe(b.s.opts.Now().Sub(began).Seconds())
	}()
	select {
	case b.slots[c] <- struct{}{}:
		return leave, nil
	case <-ctx.Done():
		return func() {}, asSQL(context.Cause(ctx))
	}
}

// lone runs single statements on a pool, each on a connection of its class's.
type lone struct {
	*sql.DB
	budget *budget
}

// enter asks for a connection if the runner is a pool; a transaction has its own.
func enter(ctx context.Context, r runner) (leave func(), err error) {
	if l, ok := r.(*lone); ok {
		return l.budget.enter(ctx)
	}
	return func() {}, nil
}
