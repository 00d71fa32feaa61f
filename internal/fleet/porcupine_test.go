package fleet

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/reservation"
)

// input is one operation on the one bucket of a history: what was asked of the n-th reservation, all attempts together.
type input struct {
	op  string
	n   int // of the reservation, below 64
	qty int64
}

// output is what was told of it: granted, rejected, done, conflict, or unknown.
type output string

const (
	granted  output = "granted"
	rejected output = "rejected"
	done     output = "done"
	conflict output = "conflict"
	unknown  output = "unknown"
)

// counter is the model's state: what is available, and which reservations are held, claimed, ended.
type counter struct {
	available         int64
	held, paid, ended uint64
}

// model is the specification: one counter, to which each operation happens at one instant between its begin and its
// answer. An operation that was never answered happens at any later time, or never.
func model(stock int64) porcupine.Model {
	nm := porcupine.NondeterministicModel{
		Init: func() []any { return []any{counter{available: stock}} },
		Step: func(state, in, out any) []any {
			s, i, o := state.(counter), in.(input), out.(output)
			if i.op == "reserve" {
				return s.reserve(i, o)
			}
			return s.end(i, o)
		},
		Equal: func(a, b any) bool { return a.(counter) == b.(counter) },
		DescribeOperation: func(in, out any) string {
			i := in.(input)
			return fmt.Sprintf("%s(%d, %d) = %s", i.op, i.n, i.qty, out.(output))
		},
	}
	return nm.ToModel()
}

func (s counter) reserve(i input, o output) []any {
	bit := uint64(1) << i.n
	var next []any
	if o != rejected && s.available >= i.qty {
		took := s
		took.available -= i.qty
		took.held |= bit
		next = append(next, took)
	}
	if o != granted && s.available < i.qty {
		next = append(next, s)
	}
	if o == unknown {
		next = append(next, s) // never happened
	}
	return next
}

func (s counter) end(i input, o output) []any {
	bit := uint64(1) << i.n
	var next []any
	if o != conflict {
		switch {
		case i.op == "release" && s.held&bit != 0:
			gave := s
			gave.held &^= bit
			gave.ended |= bit
			gave.available += i.qty
			next = append(next, gave)
		case i.op == "claim" && s.held&bit != 0:
			paid := s
			paid.held &^= bit
			paid.paid |= bit
			next = append(next, paid)
		case i.op == "release" && s.ended&bit != 0, i.op == "claim" && s.paid&bit != 0:
			next = append(next, s) // the same answer again
		}
	}
	if o == conflict && (i.op == "release" && s.paid&bit != 0 || i.op == "claim" && s.ended&bit != 0) {
		next = append(next, s)
	}
	if o == unknown {
		next = append(next, s)
	}
	return next
}

// operations makes one operation of all attempts of a buyer at one thing: from his first attempt's begin to the end of
// the attempt that was answered. Without an answer it never ends. The history is of one bucket, in one shop.
func operations(calls []call) []porcupine.Operation {
	number, ids := map[string]int{}, map[string]string{}
	qty := map[string]int64{}
	for _, c := range calls {
		if c.Op != "reserve" {
			continue
		}
		if _, ok := number[c.Key]; !ok {
			number[c.Key] = len(number)
			qty[c.Key] = c.Lines[0].Quantity
		}
		if c.ID != "" {
			ids[c.ID] = c.Key
		}
	}
	type thing struct{ op, key string }
	var order []thing
	began, answered := map[thing]time.Duration{}, map[thing]call{}
	for _, c := range calls {
		key := c.Key
		if c.Op != "reserve" {
			key = ids[c.ID]
		}
		th := thing{c.Op, key}
		if _, ok := began[th]; !ok {
			began[th] = c.Begin
			order = append(order, th)
		}
		if first, ok := answered[th]; !c.undecided() && (!ok || c.End < first.End) {
			answered[th] = c
		}
	}
	ops := make([]porcupine.Operation, 0, len(order))
	for n, th := range order {
		op := porcupine.Operation{
			ClientId: n, Input: input{th.op, number[th.key], qty[th.key]}, Output: unknown, Call: int64(began[th]), Return: math.MaxInt64,
		}
		if c, ok := answered[th]; ok {
			op.Output, op.Return = outputOf(c), int64(c.End)
			if c.Outcome == "REJECTED" && c.DecidedBy == "mysql" {
				op.Call -= int64(soldOutFor)
			}
		}
		ops = append(ops, op)
	}
	return ops
}

// soldOutFor is how long MySQL may remember across processes that a bucket is sold out: such a rejection may be of an
// instant that long before its call. Within one process it is forgotten at once.
const soldOutFor = 50 * time.Millisecond

func outputOf(c call) output {
	switch {
	case c.Op == "reserve" && c.Outcome == "GRANTED":
		return granted
	case c.Op == "reserve" && c.Outcome == "REJECTED":
		return rejected
	case c.Code == "ok":
		return done
	default:
		return conflict
	}
}

// checkWithin bounds one check.
const checkWithin = 30 * time.Second

// linearizable fails the test if no order of the operations explains the answers.
func linearizable(tb testing.TB, stock int64, calls []call) bool {
	tb.Helper()
	ops := operations(calls)
	switch porcupine.CheckOperationsTimeout(model(stock), ops, checkWithin) {
	case porcupine.Ok:
		return true
	case porcupine.Unknown:
		tb.Logf("a history of %d operations could not be checked within %s", len(ops), checkWithin)
		return true
	default:
		return false
	}
}

// A test of the test: a unit that is granted twice has no order, and neither has a rejection while one is left.
func TestPorcupineFindsPlantedFaults(t *testing.T) {
	t.Parallel()
	sound := func() []call {
		return []call{
			reserveOf(1, 1, 2, "GRANTED"), reserveOf(2, 2, 1, "GRANTED"), reserveOf(3, 3, 1, "REJECTED"),
			endOf(2, 4, "release", reservation.Released), reserveOf(4, 5, 1, "GRANTED"), endOf(1, 6, "claim", reservation.Claimed),
		}
	}
	if !linearizable(t, 3, sound()) {
		t.Fatal("a sound history is refused")
	}
	lost := sound()
	lost[2].Code, lost[2].Outcome = "none", ""
	if !linearizable(t, 3, lost) {
		t.Error("a call without an answer may not have happened")
	}
	happened := append(sound(), reserveOf(5, 7, 1, "GRANTED"))
	happened[4].Code, happened[4].Outcome = "none", ""
	if !linearizable(t, 3, happened) {
		t.Error("the unit of a call without an answer was there for another")
	}
	for name, c := range map[string]call{
		"a unit granted twice":                 reserveOf(5, 7, 1, "GRANTED"),
		"a claim of what was released":         endOf(2, 7, "claim", reservation.Claimed),
		"a release of what was claimed":        endOf(1, 7, "release", reservation.Released),
		"a rejection at a time of plenty":      reserveOf(5, 0, 1, "REJECTED"),
		"a conflict of a claim with no reason": func() call { c := endOf(4, 7, "claim", 0); c.Code = "failed_precondition"; return c }(),
	} {
		calls := append(sound(), c)
		slices.SortFunc(calls, func(a, b call) int { return cmp.Compare(a.Begin, b.Begin) })
		if linearizable(t, 3, calls) {
			t.Errorf("%s is found linearizable", name)
		}
	}
}

// haggle is a small history: few buyers, each with a handful of reservations of one bucket of few units.
func (f *fleet) haggle(ctx context.Context, seed uint64, b reservation.Bucket, buyers, each int) {
	var wg sync.WaitGroup
	for n := range buyers {
		wg.Go(func() {
			r := newRand(seed, n)
			for i := range each {
				c := call{Op: "reserve", Shop: b.Shop, Key: fmt.Sprintf("%d-%d-%d-%d", seed, b.Item, n, i)}
				c.Lines = []reservation.Line{{Item: b.Item, Group: b.Group, Quantity: 1 + r.Int64N(2)}}
				got := f.insist(ctx, r, c, 5*time.Minute, patient())
				if pause(ctx, between(r, 0, 600*time.Millisecond)); got.Outcome != "GRANTED" {
					continue
				}
				end := call{Op: "release", Shop: b.Shop, Key: c.Key, ID: got.ID}
				if r.IntN(5) == 0 {
					end.Op = "claim"
				}
				f.insist(ctx, r, end, 0, patient())
				pause(ctx, between(r, 0, 300*time.Millisecond))
			}
		})
	}
	wg.Wait()
}

// I1, I5: what buyers are told of one bucket across flips and kills is what one counter could have told them.
func TestPorcupine(t *testing.T) {
	histories := 2
	if devtest.Soak() {
		histories = 25
	}
	const units = 4
	seed := seedOf(t)
	f := newFleet(t, settings{routers: 3, pods: 1})
	r := newRand(seed, 1000)
	for h := range histories {
		b := reservation.Bucket{Shop: f.shopOf(0), Item: int64(100 + h), Group: 1}
		f.stock(map[reservation.Bucket]int64{b: units})
		from := len(f.history.snapshot())
		walked := make(chan error, 1)
		go func() { walked <- f.walk(t.Context(), r, 0, h%3 == 2) }()
		f.haggle(t.Context(), seed+uint64(h), b, 6, 9)
		if err := <-walked; err != nil {
			t.Fatal(err)
		}
		var calls []call
		for _, c := range f.history.snapshot()[from:] {
			if c.Op != "reserve" || c.Lines[0].Item == b.Item {
				calls = append(calls, c)
			}
		}
		if !linearizable(t, units, calls) {
			t.Errorf("history %d has no order that explains its answers:\n%s", h, listed(calls))
		}
	}
	t.Log(f.history.summary())
	newJudge(f.history, nil, nil).report(t)
}

func listed(calls []call) string {
	var b []byte
	for _, c := range calls {
		b = fmt.Appendf(b, "  %s key %s\n", c, c.Key)
	}
	return string(b)
}
