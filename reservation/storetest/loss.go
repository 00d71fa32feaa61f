package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Lossy is a second store on the harness's data, behind a proxy that can lose replies.
type Lossy struct {
	Store reservation.Store
	// Arm makes the store lose one reply to its next operation of this kind. fired tells how often it did.
	Arm func(op reservation.Op, loss Loss) (fired func() int, err error)
	// Places names the commits of operations that have several (a claim's pin, ledger and finish), in the store's own
	// words. Each is lost in turn. Operations that are not listed have one, which has no name.
	Places map[reservation.Op][]string
}

// Loss says which reply is lost, and how.
type Loss struct {
	// Place is one of the operation's Places; empty if it has one commit only.
	Place string
	// Committed: the server has carried the write out, and only the word of it is lost. Else the connection ends
	// before the server has committed.
	Committed bool
	// Swallow: the reply never comes and the connection stays open. Else the connection is cut.
	Swallow bool
}

// String names the loss in test names.
func (l Loss) String() string {
	when, how := "before_commit", "cut"
	if l.Committed {
		when = "after_commit"
	}
	if l.Swallow {
		how = "swallowed"
	}
	if l.Place != "" {
		when = l.Place + "_" + when
	}
	return when + "_" + how
}

// lossDeadline is the deadline of an operation whose reply is swallowed.
const lossDeadline = 3 * time.Second

func lossCases() []testCase {
	var cases []testCase
	for _, op := range []reservation.Op{reservation.OpReserve, reservation.OpClaim, reservation.OpRelease, reservation.OpAdjust} {
		for _, loss := range []Loss{{}, {Committed: true}, {Swallow: true}, {Committed: true, Swallow: true}} {
			cases = append(cases, testCase{
				name: fmt.Sprintf("%s_%s", op, loss), needs: LostReplies,
				run: func(e *env) { lostReplies(e, op, loss) },
			})
		}
	}
	return cases
}

// lostReplies loses the reply at each place that the operation has, each in a shop of its own.
func lostReplies(e *env, op reservation.Op, loss Loss) {
	lossy := e.h.Lossy(e.t)
	places := lossy.Places[op]
	if len(places) == 0 {
		places = []string{""}
	}
	for i, place := range places {
		at := *e
		at.shop += int64(i)
		loss.Place = place
		at.lostReply(lossy, op, loss)
	}
}

// lostReply: whatever the lossy store answers (the truth, or that the outcome is unknown), it is within the deadline,
// and a retry with the same key or id leaves exactly one effect.
func (e *env) lostReply(lossy *Lossy, op reservation.Op, loss Loss) {
	e.stock(10)
	subject := e.subject(op)
	fired, err := lossy.Arm(op, loss)
	if err != nil {
		e.Fatalf("arm %s %s: %v", op, loss, err)
	}
	ctx, cancel := context.WithTimeout(e.t.Context(), lossDeadline)
	defer cancel()
	began := time.Now()
	first, err := subject.do(ctx, lossy.Store)
	if took := time.Since(began); took > lossDeadline+time.Second {
		e.Errorf("%s took %v; its deadline was %v", op, took, lossDeadline)
	}
	if fired() == 0 {
		e.Fatalf("no reply was lost: the rule for %s %s never matched (the operation answered %v)", op, loss, err)
	}
	if err != nil && reservation.CodeOf(err) != reservation.CodeUnavailable {
		e.Fatalf("%s %s with a lost reply: %v; that is neither the truth nor an unknown outcome", op, loss, err)
	}
	e.Logf("%s %s was answered: %v %v", op, loss, first, err)
	second := e.again(subject)
	if err == nil && first != second {
		e.Fatalf("%s was answered %s under loss, %s on the retry", op, first, second)
	}
	if third := e.again(subject); third != second {
		e.Fatalf("%s was answered %s, then %s", op, second, third)
	}
	subject.check(second)
}

// again carries the subject out on the sound store until it is not busy: the server may still be ending what a dead
// connection had begun.
func (e *env) again(s subject) string {
	e.Helper()
	got, err := retried(e, func() (string, error) {
		ctx, cancel := e.ctx()
		defer cancel()
		return s.do(ctx, e.h.Store)
	})
	if err != nil {
		e.Fatalf("the retry: %v", err)
	}
	return got
}

// subject is one operation that can be repeated: do tells what was answered, check what must be there afterwards.
type subject struct {
	do    func(ctx context.Context, s reservation.Store) (string, error)
	check func(answer string)
}

func (e *env) subject(op reservation.Op) subject {
	switch op {
	case reservation.OpReserve:
		req := e.request(e.shop, e.key(), longTTL, line(1, 3))
		return subject{func(ctx context.Context, s reservation.Store) (string, error) {
			res, err := s.Reserve(ctx, e.h.Stamp, e.id(), req)
			return fmt.Sprintf("%s %s", res.Record.ID, res.Record.Outcome), err
		}, func(string) { e.figures(1, 7, 3, 10) }}
	case reservation.OpClaim:
		id := e.granted(line(1, 3))
		return subject{func(ctx context.Context, s reservation.Store) (string, error) {
			res, err := s.Claim(ctx, e.h.Stamp, e.shop, id)
			return res.Record.State.String(), err
		}, func(string) {
			e.figures(1, 7, 0, 7)
			e.state(id, reservation.Claimed)
			e.wantEntries(id, line(1, 3))
		}}
	case reservation.OpRelease:
		id := e.granted(line(1, 3))
		return subject{func(ctx context.Context, s reservation.Store) (string, error) {
			res, err := s.Release(ctx, e.h.Stamp, e.shop, id)
			return res.Record.State.String(), err
		}, func(string) { e.figures(1, 10, 0, 10); e.state(id, reservation.Released) }}
	default:
		adj := reservation.Adjustment{ID: e.key(), Bucket: e.bucket(1), Delta: -4}
		return subject{func(ctx context.Context, s reservation.Store) (string, error) {
			res, err := s.Adjust(ctx, e.h.Stamp, adj)
			return fmt.Sprintf("%d on hand", res.Figures.OnHand), err
		}, func(string) { e.figures(1, 6, 0, 6) }}
	}
}

var _ reporter = (*testing.T)(nil)
