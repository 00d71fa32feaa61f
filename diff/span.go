package diff

import (
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Span follows one operation from the router's door to its end. Its methods are called in order, by one goroutine
// at a time: Decided or Undecided; then, if it was decided, Compare or Gap once.
//
// The truth is the store that decides in the stage of the outcome's stamp. Decided comes as soon as that store has
// answered, or later with that time in Outcome.Ended. An operation that was routed again after a decision is Decided
// again, once for each: the last outcome is the one that counts, the others tell what the stores took meanwhile. An
// attempt that was refused as stale is no decision, and Outcome.Asked leaves it out.
//
// In handover Redis's outcome is Decided, and MySQL's judgement Compared once the operation has its answer: confirmed,
// or turned down, which gives Redis's units back.
type Span struct {
	engine *Engine
	pair   Pair

	began time.Time // at the router's door

	effects  []effect
	decided  bool
	finished bool // compared or gap
	gap      bool
	gapAt    time.Time // when it ended as one: what was read before may lack it
	// first is the earlier decision of an operation that was decided again.
	first *attempt
	// overtaken: a later step of the reservation was there first, so the mirror's time says nothing of its speed.
	overtaken bool
	// void: the hold reached the mirror past its expiry and took no stock there. The step that ends it in the truth
	// closes the account of both.
	void bool
	// turnedDown: MySQL said no to what Redis had taken in handover.
	turnedDown bool

	// traces says when each store took the operation's effect. The engine's lock guards them once they are registered.
	traces stores[trace]

	prev, next *Span // the engine's list of live spans, in order of began
	listed     bool
}

// attempt is a decision that another one replaced.
type attempt struct {
	truth reservation.Truth
	stamp reservation.Stamp
	side  Side
}

// Outcome is the truth's answer, as the router saw it.
type Outcome struct {
	Decision reservation.Decision
	Record   *reservation.Record // nil where the truth has none (conflict of keys, not found)
	Replayed bool
	Levels   []reservation.Level
	Lines    []reservation.Line
	Shop     int64
	ID       reservation.ID
	KeyHash  reservation.Hash
	// Stamp is the one under which it was decided. Its stage says which store is the truth of this operation.
	Stamp reservation.Stamp
	// Moved is true where the operation moved units of its lines in the truth.
	Moved bool
	// Adjustment is set for an adjustment that was carried out.
	Adjustment *reservation.Adjustment
	// Asked is when the truth was asked, under this stamp; zero: when the operation began, or was decided before.
	Asked time.Time
	// Ended is when the truth had answered; zero: now.
	Ended time.Time
}

// Decided notes the truth's answer. Told again, after the operation was routed again, it replaces the earlier answer.
func (s *Span) Decided(o Outcome) {
	asked := s.attempted(&o)
	s.engine.mu.Lock()
	defer s.engine.mu.Unlock()
	if s.decided {
		s.again(o, asked)
		return
	}
	s.note(o, asked)
	truth := truthOf(o.Stamp.Stage)
	s.traces.of(truth).take = asked
	s.traces.of(other(truth)).take = window{from: asked.to}
	s.engine.register(s, effectsOf(s.pair.Op, o))
}

// attempted is when the truth decided.
func (s *Span) attempted(o *Outcome) window {
	w := window{o.Asked, o.Ended}
	if w.from.IsZero() {
		w.from = s.began
		if s.decided {
			w.from = s.pair.Truth.Ended
		}
	}
	if w.to.IsZero() {
		w.to = s.engine.now()
	}
	return w
}

func (s *Span) note(o Outcome, asked window) {
	p := &s.pair
	p.Shop, p.ID, p.KeyHash, p.Stamp = o.Shop, o.ID, o.KeyHash, o.Stamp
	p.Lines, p.Replayed = o.Lines, o.Replayed
	p.Truth = Side{Decision: o.Decision, Record: o.Record, Levels: o.Levels, Began: asked.from, Ended: asked.to}
	if o.Record != nil {
		p.Truth.State = o.Record.State
	}
}

// again replaces the decision of an operation that was routed again. What the first one moved stays where it is if the
// new truth agrees; if it does not, it is given back. The caller holds the lock.
func (s *Span) again(o Outcome, asked window) {
	was, is := truthOf(s.pair.Stamp.Stage), truthOf(o.Stamp.Stage)
	if s.first == nil {
		s.first = &attempt{was, s.pair.Stamp, s.pair.Truth}
	}
	if o.ID == s.pair.ID { // it may repeat what this very operation did before
		o.Replayed = o.Replayed && s.pair.Replayed
	}
	s.note(o, asked)
	switch moved, stands := len(s.effects) > 0, stands(o.Decision); {
	case !moved:
		s.traces.of(is).take = asked
		s.traces.of(other(is)).take = window{from: asked.to}
		s.engine.register(s, effectsOf(s.pair.Op, o))
	case stands && is != was:
		*s.traces.of(is) = trace{take: asked}
	case stands: // the same store took it at the first time of asking
	case is != was:
		*s.traces.of(is) = trace{never: true}
		s.traces.of(was).back = window{from: asked.to}
	default:
		s.traces.of(is).back = asked
		*s.traces.of(other(is)) = trace{never: true}
	}
}

// Undecided ends an operation whose outcome in the truth is not known, or that the truth refused to take. What it
// may have done is remembered: o is what the caller asked for, with the stamp of the last attempt.
func (s *Span) Undecided(reason GapReason, o Outcome) {
	s.lost(reason, o)
	s.Gap(reason)
	if reason == GapUnknown && len(o.Lines) == 0 {
		s.engine.remember(s)
	}
}

func (s *Span) lost(reason GapReason, o Outcome) {
	asked := s.attempted(&o)
	s.engine.mu.Lock()
	defer s.engine.mu.Unlock()
	p := &s.pair
	p.Shop, p.ID, p.Lines, p.Stamp = o.Shop, o.ID, o.Lines, o.Stamp
	p.Truth = Side{Began: asked.from, Ended: asked.to}
	if s.decided && len(s.effects) > 0 { // one store has it, and catch-up will settle whether both do
		return
	}
	is := truthOf(o.Stamp.Stage)
	s.traces.of(is).take = asked
	s.traces.of(other(is)).take = window{from: asked.from}
	s.engine.register(s, perhaps(p.Op, o, reason))
}

// MirrorBegins notes that the mirror starts on the operation.
func (s *Span) MirrorBegins() { s.MirrorBeganAt(s.engine.now()) }

// MirrorBeganAt is MirrorBegins for a mirror that was written before the caller was answered.
func (s *Span) MirrorBeganAt(at time.Time) {
	s.pair.Mirror.Began, s.pair.Mirror.Ended = at, time.Time{}
}

// MirrorEndedAt notes when the mirror had answered, where more was done before the operation is compared: in handover,
// the confirmation. Without it, Compare is that moment.
func (s *Span) MirrorEndedAt(at time.Time) { s.pair.Mirror.Ended = at }

// Compare ends the operation with the mirror's judgement.
func (s *Span) Compare(j reservation.Judgement) {
	if j.Backfilled {
		s.Gap(GapBackfilled)
		return
	}
	now := s.engine.now()
	m := &s.pair.Mirror
	if m.Ended.IsZero() {
		m.Ended = now
	}
	switch {
	case m.Began.IsZero(): // the operation's own protocol wrote both
		m.Began = s.pair.Truth.Began
	case j.Overtaken: // a later step stored and judged it, at some time since the answer
		m.Began, s.overtaken = s.pair.Truth.Ended, true
	}
	m.Decision, m.State, m.Record, m.Levels = j.Decision, j.State, j.Record, j.Levels
	took := s.pair.Op == reservation.OpReserve && !s.pair.Replayed && s.pair.Truth.State.TakesUnits()
	s.void = took && j.State == reservation.Expired
	s.turnedDown = took && s.pair.Truth.State == reservation.Provisional && j.Decision != reservation.Granted &&
		!j.State.TakesUnits() && !s.void
	s.engine.compared(s, now)
}

// Gap ends the operation without a comparison: catch-up has to see to it.
func (s *Span) Gap(reason GapReason) { s.engine.gapped(s, reason) }

// mirrored closes the traces of an operation that was compared: at is when its last step was over. The caller holds
// the lock.
func (s *Span) mirrored(at time.Time) {
	p := &s.pair
	truth := p.truth()
	m := s.traces.of(other(truth))
	switch {
	case s.turnedDown:
		s.traces.of(truth).back = window{p.Mirror.Ended, at}
		*m = trace{never: true}
	case m.take.to.IsZero():
		m.take = window{p.Mirror.Began, p.Mirror.Ended}
	}
	s.traces.redis.end(at)
	s.traces.mysql.end(at)
}

// answer is what the caller was told: in handover, MySQL's no.
func (s *Span) answer() reservation.Decision {
	if s.turnedDown {
		return s.pair.Mirror.Decision
	}
	return s.pair.Truth.Decision
}

// replayed gives the mirror's side of an operation that the mirror had decided first, as the truth of another stage,
// what it saw then: its judgement only repeats that decision.
func (s *Span) replayed() {
	f, m := s.first, &s.pair.Mirror
	if f == nil || f.truth == s.pair.truth() || f.side.Decision != m.Decision || len(m.Levels) > 0 {
		return
	}
	m.Levels, m.Began, m.Ended = f.side.Levels, f.side.Began, f.side.Ended
}
