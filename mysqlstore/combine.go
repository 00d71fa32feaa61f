package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/twinhold/twinhold/reservation"
)

// share carries a batch out in one transaction, and tells each member what became of it. It ends with the store, and
// with the one member's context where there are no others.
func (s *Store) share(kind laneKind, batch []*member) {
	base := s.life
	if batch[0].solo {
		base = batch[0].ctx
	}
	ctx, cancel := context.WithTimeout(inClass(base, kind.class()), s.opts.Deadline)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	s.metrics.batch.WithLabelValues(kind.String()).Observe(float64(len(batch)))
	switch kind {
	case reserveLane:
		s.shareReserves(ctx, batch)
	case ledgerLane:
		s.shareEndings(ctx, batch)
	case lookLane:
		s.shareLooks(ctx, batch)
	case agreeLane, arriveLane:
		s.shareArrivals(ctx, kind, batch)
	case leaveLane:
		s.shareLeavings(ctx, batch)
	}
}

// class is whose connections the lane's shared transactions hold.
func (k laneKind) class() class {
	if k == arriveLane || k == leaveLane {
		return mirrorClass
	}
	return truthClass
}

func (k laneKind) String() string {
	switch k {
	case reserveLane:
		return "reserve"
	case ledgerLane:
		return "ledger"
	case agreeLane:
		return "agree"
	case arriveLane:
		return "mirror_reserve"
	case leaveLane:
		return "mirror_ledger"
	default:
		return "look"
	}
}

// sharing is the body of a shared transaction. It starts from nothing each time.
type sharing interface {
	// opening is what is asked and locked before anything is decided.
	opening() []statement
	// decide says what is to be written, once the opening has been read.
	decide(t *tx) ([]statement, error)
}

// together runs a shared transaction once, but for a fence that has to be raised first.
func (s *Store) together(ctx context.Context, w work, body sharing) error {
	began := s.opts.Now()
	defer func() { s.metrics.duration.WithLabelValues(w.path).Observe(s.opts.Now().Sub(began).Seconds()) }()
	for n := 1; ; n++ {
		err := s.togetherOnce(ctx, w, body)
		if !errors.Is(err, errBehind) || n >= s.opts.Attempts {
			return err
		}
		if err := s.catchUp(ctx, w.stamp); err != nil {
			return err
		}
		s.metrics.retries.WithLabelValues("fence").Inc()
	}
}

func (s *Store) togetherOnce(ctx context.Context, w work, body sharing) error {
	limit := s.opts.WriteTimeout * time.Duration(1+w.lines/linesPerLimit)
	db, isolate, start := s.db, qIsolateRC, qStart
	if s.packets != nil {
		db, isolate, start = s.packets, "", ""
	}
	return s.inTxOn(ctx, db, limit, isolate, start, func(ctx context.Context, t *tx) error {
		t.path, t.stamp, t.packets = w.path, w.stamp, s.packets != nil
		sts := append([]statement{s.fenceStatement(t)}, body.opening()...)
		if t.packets {
			sts = append([]statement{{query: qStart}}, sts...) // these connections are READ COMMITTED
		}
		if err := s.send(ctx, t, sts); err != nil {
			return err
		}
		writes, err := body.decide(t)
		if err != nil {
			return err
		}
		if t.idle = len(writes) == 0; t.idle {
			return nil
		}
		if !t.packets {
			return s.send(ctx, t, writes)
		}
		return s.sendAndCommit(ctx, t, writes)
	})
}

// fenceStatement reads the fence and MySQL's clock into the transaction, and holds the fence against the stamp.
func (s *Store) fenceStatement(t *tx) statement {
	var r fenceRow
	return statement{
		query: qFenceShare, args: []any{[]byte(s.opts.Pod)},
		scan: func(rows *sql.Rows) error { return r.scan(rows) },
		then: func() (err error) {
			if t.fence, t.now, err = r.fence(s.opts.Pod); err != nil {
				return err
			}
			s.clock.note(t.now, s.opts.Now())
			return checkFence(t.stamp, t.fence)
		},
	}
}

// sendAndCommit sends the last packet with its COMMIT. An error of a statement before the COMMIT is known by its
// number; whatever else goes wrong leaves the outcome open.
func (s *Store) sendAndCommit(ctx context.Context, t *tx, sts []statement) error {
	s.step(t, "commit")
	if err := ctx.Err(); err != nil {
		return asSQL(err) // not sent
	}
	err := s.send(ctx, t, append(sts, statement{query: qCommit}))
	var me *mysql.MySQLError
	switch {
	case err == nil:
		t.committed = true
		return nil
	case isAnswer(err):
		return err // the guard's
	case errors.As(err, &me) && (me.Number == erDupEntry || me.Number == erDeadlock || me.Number == erLockWait):
		return err
	default:
		return &commitError{err}
	}
}

// tellAll tells members of a transaction that failed as a whole what to do now. One bad request must not harm the
// others, so each is run alone. done is the instant that the transaction wrote, and words what it would have said, if it got
// that far.
func (s *Store) tellAll(batch []*member, err error, done time.Time, words []word) {
	var fe *reservation.FenceError
	w := word{why: "error"}
	var ce *commitError
	switch {
	case errors.As(err, &ce):
		w = word{why: "commit", prior: err, done: done}
	case isAnswer(err) && errors.As(err, &fe):
		w = word{err: err} // it says the same to each
	case retryReason(err) != "":
		w.why = retryReason(err)
	}
	for n, m := range batch {
		if w.prior != nil && n < len(words) {
			w.deduct, w.judged = words[n].deduct, words[n].judged
		}
		s.tell(m, w)
	}
}

// tell tells one member.
func (s *Store) tell(m *member, w word) {
	if w.why != "" {
		s.metrics.laneApart.WithLabelValues(w.why).Inc()
	}
	m.told <- w
}
