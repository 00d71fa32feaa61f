package legacyredis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/reservation"
)

// Bounds of how often one call is sent.
const (
	maxAttempts  = 8
	firstBackoff = 5 * time.Millisecond
	maxBackoff   = 250 * time.Millisecond
)

// call is one script to run for one operation.
type call struct {
	script script
	op     reservation.Op
	stamp  reservation.Stamp
	args   []any // after epoch and stage
	// readOnly: it changes nothing, so a lost reply leaves nothing unknown.
	readOnly bool
	// restore is the token of the restore that this write is part of; empty: of none.
	restore string
}

func (c call) argv() []any {
	argv := make([]any, 0, len(c.args)+2)
	if c.restore != "" {
		return append(append(argv, "restore", c.restore), c.args...)
	}
	argv = append(argv, strconv.FormatUint(c.stamp.Epoch, 10), c.stamp.Stage.String())
	return append(argv, c.args...)
}

// fault is what an error of Redis means for a call.
type fault uint8

const (
	// refused: Redis answered, changed nothing, and will say the same again.
	refused fault = iota + 1
	// later: Redis answered, changed nothing, and may do better soon.
	later
	// notSent: it never left.
	notSent
	// lost: it may have been carried out.
	lost
	// broken: Redis answered with an error that no state of a healthy server explains.
	broken
)

// run carries a script out, and sends it again as long as that may help: after a lost reply too, since every script
// knows its own work by id. What a script answers about the fence or about corrupt data is made an error here.
func (s *Store) run(ctx context.Context, c call) (reply, error) {
	start := time.Now()
	defer func() { s.metrics.scripts.WithLabelValues(c.script.name).Observe(time.Since(start).Seconds()) }()
	unsettled := false
	for attempt := 1; ; attempt++ {
		r, err := s.attempt(ctx, c)
		if err == nil {
			return s.answer(c, r)
		}
		kind := classify(err)
		unsettled = unsettled || (kind == lost && !c.readOnly)
		if kind == refused || kind == broken || attempt == maxAttempts || !backoff(ctx, attempt) {
			s.metrics.failed.WithLabelValues(c.script.name, className(err)).Inc()
			return reply{}, s.failure(c, err, kind, unsettled)
		}
		s.metrics.retries.WithLabelValues(c.script.name, className(err)).Inc()
	}
}

// attempt sends a script once by its SHA, and in full if Redis does not have it: it refused then, and did nothing.
func (s *Store) attempt(ctx context.Context, c call) (any, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, notSentError{err}
	}
	keys, argv := []string{s.keys.fence()}, c.argv()
	r, err := c.script.lua.EvalSha(ctx, s.client, keys, argv...).Result()
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		s.metrics.noscript.Inc()
		r, err = c.script.lua.Eval(ctx, s.client, keys, argv...).Result()
	}
	return r, err
}

// failure is the error of a call that ended without an answer.
func (s *Store) failure(c call, err error, kind fault, unsettled bool) error {
	err = checked(err)
	switch {
	case unsettled:
		return &reservation.UnknownOutcomeError{Store: reservation.Redis, Op: c.op, Cause: err}
	case kind == broken && redis.HasErrorPrefix(err, "WRONGTYPE"):
		return &reservation.CorruptError{Store: reservation.Redis, What: err.Error()}
	case kind == broken:
		return fmt.Errorf("redis: script %s: %w", c.script.name, err)
	default:
		return &reservation.UnavailableError{Store: reservation.Redis, Cause: err}
	}
}

// notSentError marks an attempt that was given up before anything was sent.
type notSentError struct{ error }

func (e notSentError) Unwrap() error { return e.error }

func classify(err error) fault {
	var unchecked uncheckedError
	if errors.As(err, &unchecked) {
		if kind := classify(unchecked.cause); kind != lost {
			return kind
		}
		return notSent
	}
	var redisErr redis.Error
	var op *net.OpError
	var unsent notSentError
	var away elsewhereError
	switch {
	case errors.As(err, &away):
		return later
	case errors.As(err, &unsent), errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrClosed),
		errors.As(err, &op) && op.Op == "dial":
		return notSent
	case !errors.As(err, &redisErr):
		return lost
	case hasPrefix(err, "BUSY", "LOADING", "TRYAGAIN", "NOSCRIPT", "MASTERDOWN"), redis.IsMaxClientsError(err):
		return later
	case hasPrefix(err, "READONLY", "MISCONF", "OOM", "CLUSTERDOWN", "NOREPLICAS", "NOAUTH", "WRONGPASS", "NOPERM",
		"MOVED", "ASK"):
		return refused
	default:
		return broken
	}
}

// hasPrefix also finds the code of an error that a command inside of a script met. Redis put it in front there too.
func hasPrefix(err error, codes ...string) bool {
	for _, code := range codes {
		if redis.HasErrorPrefix(err, code) {
			return true
		}
	}
	return false
}

// className is a metric label for an error: Redis's own code, or how it never came.
func className(err error) string {
	err = checked(err)
	var away elsewhereError
	if errors.As(err, &away) {
		err = away.cause
	}
	var redisErr redis.Error
	if errors.As(err, &redisErr) {
		code, _, _ := strings.Cut(redisErr.Error(), " ")
		return strings.ToLower(code)
	}
	var timeout net.Error
	switch {
	case classify(err) == notSent:
		return "not_sent"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	default:
		return "connection"
	}
}

// backoff waits before the next attempt: exponential, with jitter. It tells whether there is time for one.
func backoff(ctx context.Context, attempt int) bool {
	d := min(firstBackoff<<(attempt-1), maxBackoff)
	d = d/2 + rand.N(d/2+1)
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= d {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// ask carries out plain reading commands, and sends them again as run does.
func (s *Store) ask(ctx context.Context, what string, f func(ctx context.Context) error) error {
	for attempt := 1; ; attempt++ {
		err := context.Cause(ctx)
		if err == nil {
			err = f(ctx)
		}
		var corrupt *reservation.CorruptError
		var fence *reservation.FenceError
		switch {
		case err == nil, errors.As(err, &corrupt), errors.As(err, &fence), errors.Is(err, reservation.ErrNotFound):
			return err
		}
		kind := classify(err)
		if kind == broken {
			return fmt.Errorf("redis: %s: %w", what, checked(err))
		}
		if kind == refused || attempt == maxAttempts || !backoff(ctx, attempt) {
			s.metrics.failed.WithLabelValues(what, className(err)).Inc()
			return &reservation.UnavailableError{Store: reservation.Redis, Cause: checked(err)}
		}
	}
}
