package server

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
)

// withheld is an error whose cause (addresses, statements) is for the log, not for the caller.
type withheld struct {
	text  string
	cause error
}

// Error gives what the caller may read.
func (e *withheld) Error() string { return e.text }

const (
	// causeWindow is for how long a cause that was logged is only counted.
	causeWindow = 10 * time.Second
	// maxCauses bounds those that are remembered at once: beyond it they are counted together.
	maxCauses = 256
	// maxCause bounds the text of one.
	maxCause = 500
)

// failure is one call that could not be answered. Reservation is empty where the caller had none yet.
type failure struct {
	level                slog.Level
	pod, op, reservation string
	shop                 int64
	cause                string
}

// sameCause is what makes failures alike: their texts but for the numbers and ids in them.
type sameCause struct{ pod, op, cause string }

// causes logs why calls were not answered: each cause in full when it is first met, and once more at the end of its
// window, with the number of calls that were left out between. An outage is then two lines, and not one a call.
type causes struct {
	log *slog.Logger

	mu     sync.Mutex
	known  map[sameCause]*window
	closed bool
}

// window is a cause that was logged, and what came after.
type window struct {
	last    failure
	leftOut int
	end     *time.Timer
}

func newCauses(log *slog.Logger) *causes { return &causes{log: log, known: map[sameCause]*window{}} }

// add takes one failure.
func (c *causes) add(f failure) {
	key := sameCause{f.pod, f.op, alike(f.cause)}
	c.mu.Lock()
	defer c.mu.Unlock()
	w, met := c.known[key]
	if !met && len(c.known) >= maxCauses {
		key = sameCause{}
		w, met = c.known[key]
	}
	if met {
		w.last, w.leftOut = f, w.leftOut+1
		return
	}
	c.tell("a call could not be answered", f)
	if !c.closed {
		c.known[key] = &window{end: time.AfterFunc(causeWindow, func() { c.over(key) })}
	}
}

// over ends a window: what comes next is logged in full again.
func (c *causes) over(key sameCause) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.known[key]; w != nil {
		c.sum(key, w)
	}
}

// close tells what is not told yet. Whatever fails later is logged by itself.
func (c *causes) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for key, w := range c.known {
		w.end.Stop()
		c.sum(key, w)
	}
}

func (c *causes) sum(key sameCause, w *window) {
	delete(c.known, key)
	if w.leftOut > 0 {
		what := "calls could not be answered, as before"
		if key == (sameCause{}) {
			what = "calls could not be answered, for too many causes to tell apart"
		}
		c.tell(what, w.last, "left_out", w.leftOut)
	}
}

func (c *causes) tell(what string, f failure, more ...any) {
	args := []any{"pod", f.pod, "op", f.op, "shop", f.shop}
	if f.reservation != "" {
		args = append(args, "reservation", f.reservation)
	}
	c.log.Log(context.Background(), f.level, what, append(append(args, "cause", f.cause), more...)...)
}

var varies = regexp.MustCompile(`[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}|[0-9]+`)

// alike takes out what differs from call to call: ids, ports, epochs.
func alike(cause string) string { return varies.ReplaceAllString(cause, "#") }

// explained hands the cause of every answer unavailable or internal to the log.
func (s *Server) explained(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		res, err := next(ctx, req)
		level := slog.LevelWarn
		switch connect.CodeOf(err) {
		case connect.CodeInternal:
			level = slog.LevelError
		case connect.CodeUnavailable:
		default:
			return res, err
		}
		s.causes.add(s.failureOf(level, req, err))
		return res, err
	}
}

// failureOf describes a failed call, without its key.
func (s *Server) failureOf(level slog.Level, req connect.AnyRequest, err error) failure {
	f := failure{level: level, op: opOf(req.Spec()), cause: causeText(err)}
	if m, ok := req.Any().(interface{ GetShopId() int64 }); ok {
		f.shop = m.GetShopId()
		f.pod = s.opt.PodOf(f.shop)
	}
	if m, ok := req.Any().(interface{ GetReservationId() string }); ok {
		f.reservation = m.GetReservationId()
	}
	switch m := req.Any().(type) {
	case interface{ GetIdempotencyKey() string }:
		f.cause = withoutKey(f.cause, m.GetIdempotencyKey())
	case interface{ GetAdjustmentId() string }:
		f.cause = withoutKey(f.cause, m.GetAdjustmentId())
	}
	if len(f.cause) > maxCause {
		f.cause = strings.ToValidUTF8(f.cause[:maxCause], "") + "..."
	}
	return f
}

// causeText is what the caller is not told, where something is kept from it.
func causeText(err error) string {
	if e, ok := errors.AsType[*withheld](err); ok {
		return e.cause.Error()
	}
	if e, ok := errors.AsType[*connect.Error](err); ok {
		return e.Message()
	}
	return err.Error()
}

// duplicate is MySQL's word of a value that is taken: it has the value, or the beginning of it.
var duplicate = regexp.MustCompile(`(?s)Duplicate entry '.*' for key`)

// withoutKey takes the caller's key out of a text: it is the caller's own, and may be somebody's order. A short key is
// taken out only where it stands for itself, since its letters are in every word.
func withoutKey(text, key string) string {
	const none = "<key>"
	text = duplicate.ReplaceAllString(text, "Duplicate entry "+none+" for key")
	if key == "" {
		return text
	}
	if len(key) >= longKey {
		return strings.NewReplacer(key, none, strings.Trim(strconv.Quote(key), `"`), none).Replace(text)
	}
	word, err := regexp.Compile(edge(key[0]) + regexp.QuoteMeta(key) + edge(key[len(key)-1]))
	if err != nil {
		return "(not shown: it could have the caller's key)"
	}
	return word.ReplaceAllLiteralString(text, none)
}

// longKey is from how many bytes on a key is no part of a word by chance.
const longKey = 8

// edge is the expression for the end of a word, where one can end.
func edge(b byte) string {
	if b == '_' || '0' <= b && b <= '9' || 'A' <= b && b <= 'Z' || 'a' <= b && b <= 'z' {
		return `\b`
	}
	return ""
}
