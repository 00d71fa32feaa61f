package storetest

import (
	"errors"
	"strings"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

func refusedCases() []testCase {
	return []testCase{
		{name: "invalid_requests_are_refused_before_anything_is_touched", run: invalidRequests},
		{name: "unknown_bucket", run: unknownBucket},
		{name: "unknown_bucket_of_a_read", run: unknownBucketRead},
		{name: "ended_context_changes_nothing", run: endedContext},
	}
}

// invalidRequests never become a Request, so that no store can be handed one. Fractions and nulls end at the API,
// which cannot make an int64 of them.
func invalidRequests(e *env) {
	e.stock(10)
	lim := e.cfg.Limits
	many := make([]reservation.Line, reservation.MaxLines+1)
	for i := range many {
		many[i] = line(int64(i+1), 1)
	}
	for name, c := range map[string]struct {
		shop  int64
		key   string
		lines []reservation.Line
		ttl   time.Duration
		field string
	}{
		"quantity 0":           {e.shop, "k", []reservation.Line{line(1, 0)}, longTTL, "lines[0].quantity"},
		"negative quantity":    {e.shop, "k", []reservation.Line{line(1, 1), line(1, -1)}, longTTL, "lines[1].quantity"},
		"2^31":                 {e.shop, "k", []reservation.Line{line(1, 1<<31)}, longTTL, "lines[0].quantity"},
		"2^31 in sum":          {e.shop, "k", []reservation.Line{line(1, 1<<30), line(1, 1<<30)}, longTTL, "lines"},
		"empty cart":           {e.shop, "k", nil, longTTL, "lines"},
		"1001 lines":           {e.shop, "k", many, longTTL, "lines"},
		"item 0":               {e.shop, "k", []reservation.Line{line(0, 1)}, longTTL, "lines[0].itemId"},
		"negative group":       {e.shop, "k", []reservation.Line{{Item: 1, Group: -1, Quantity: 1}}, longTTL, "lines[0].groupId"},
		"shop 0":               {0, "k", []reservation.Line{line(1, 1)}, longTTL, "shopId"},
		"empty key":            {e.shop, "", []reservation.Line{line(1, 1)}, longTTL, "idempotencyKey"},
		"key of 256 bytes":     {e.shop, strings.Repeat("k", 256), []reservation.Line{line(1, 1)}, longTTL, "idempotencyKey"},
		"ttl at the minimum":   {e.shop, "k", []reservation.Line{line(1, 1)}, lim.MinTTL, "ttl"},
		"negative ttl":         {e.shop, "k", []reservation.Line{line(1, 1)}, -time.Second, "ttl"},
		"ttl over the longest": {e.shop, "k", []reservation.Line{line(1, 1)}, lim.MaxTTL + 1, "ttl"},
	} {
		_, err := reservation.NewRequest(c.shop, c.key, c.lines, c.ttl, lim)
		var inv *reservation.InvalidError
		if !errors.As(err, &inv) || inv.Field != c.field {
			e.Errorf("%s: got %v; want %s refused", name, err, c.field)
		}
	}
	e.figures(1, 10, 0, 10)
	e.wantOutcome(e.reserve("k", line(1, 1)), reservation.Granted, reservation.Held)
}

// unknownBucket: one line of a bucket that was never stocked refuses the whole cart, and the key stays free.
func unknownBucket(e *env) {
	e.stock(10)
	for _, lines := range [][]reservation.Line{
		{line(7, 1)}, {line(1, 1), line(7, 1)}, {line(7, 1), line(1, 100)}, {{Item: 1, Group: 7, Quantity: 1}},
	} {
		_, err := e.try("k", lines...)
		var unknown *reservation.UnknownBucketError
		if !errors.As(err, &unknown) {
			e.Fatalf("reserve %v: got %v; want an unknown bucket", lines, err)
		}
		if b := unknown.Bucket; b.Shop != e.shop || b.Item != 7 && b.Group != 7 {
			e.Fatalf("reserve %v: the unknown bucket is named as %s", lines, b)
		}
	}
	e.figures(1, 10, 0, 10)
	if res := e.reserve("k", line(1, 1)); res.Replayed {
		e.Fatalf("a refused request took its key")
	}
	e.figures(1, 9, 1, 10)
}

func unknownBucketRead(e *env) {
	ctx, cancel := e.ctx()
	defer cancel()
	e.stock(1)
	_, err := e.h.Store.Availability(ctx, e.bucket(7))
	var unknown *reservation.UnknownBucketError
	if !errors.As(err, &unknown) || unknown.Bucket != e.bucket(7) {
		e.Fatalf("availability of an unknown bucket: got %v", err)
	}
}

// endedContext: a caller that is gone changes nothing, and is told that he may try again.
func endedContext(e *env) {
	e.stock(10)
	held := e.granted(line(1, 2))
	ctx, cancel := e.ctx()
	cancel()
	for name, write := range e.writes(held) {
		if name == "reserve, a replay" || name == "adjust, a replay" || name == "sweep, with something due" {
			continue
		}
		if code := reservation.CodeOf(write(ctx)); code != reservation.CodeUnavailable {
			e.Errorf("%s with an ended context: %s; want unavailable", name, code)
		}
	}
	e.figures(1, 8, 2, 10)
	e.state(held, reservation.Held)
}
