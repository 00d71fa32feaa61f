package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/twinhold/twinhold/internal/podset"
)

// lookTimeout bounds what each store is waited for where both are shown: one that hangs hides nothing of the other.
const lookTimeout = 2 * time.Second

// side is what one store said.
type side[T any] struct {
	value T
	err   error
}

// askBoth asks both stores at the same time, each with a deadline of its own.
func askBoth[T any](ctx context.Context, redis, mysql func(context.Context) (T, error)) (r, m side[T]) {
	ask := func(into *side[T], f func(context.Context) (T, error)) {
		bounded, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		into.value, into.err = f(bounded)
	}
	var both sync.WaitGroup
	both.Go(func() { ask(&r, redis) })
	both.Go(func() { ask(&m, mysql) })
	both.Wait()
	return r, m
}

// showBoth shows what both stores said. It is an error only where neither shows anything.
func showBoth[T any, A texter](a *app, redis, mysql side[T], answer func(T) A) error {
	if redis.err != nil && mysql.err != nil {
		return fmt.Errorf("neither store shows it: redis: %s; mysql: %s", oneLine(redis.err), oneLine(mysql.err))
	}
	ans := bothAnswer[*A]{}
	told := func(s side[T]) (*A, string) {
		if s.err != nil {
			return nil, oneLine(s.err)
		}
		v := answer(s.value)
		return &v, ""
	}
	ans.Redis, ans.RedisError = told(redis)
	ans.MySQL, ans.MySQLError = told(mysql)
	return a.show(ans)
}

// oneLine gives an error's words without a line break, for a place that has one line.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// lookAt opens the two stores of a shop's pod, without a router, and calls f, which looks only.
func (a *app) lookAt(ctx context.Context, shop int64, f func(context.Context, *podset.Pod) error) error {
	cfg, pc, err := a.podOf(shop)
	if err != nil {
		return err
	}
	p, err := podset.OpenStores(ctx, cfg, *pc)
	if err != nil {
		return &exitError{code: exitFailed, err: err, hint: openHint(err, a.configPath)}
	}
	defer closeLooked(ctx, p)
	return hinted(f(ctx, p))
}

// closeLooked closes stores that were only looked at: nothing of them is owed to anybody.
func closeLooked(ctx context.Context, p *podset.Pod) {
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
	defer cancel()
	_ = p.Close(closing)
}
