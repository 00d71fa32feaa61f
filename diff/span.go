package diff

import (
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// effect is what an operation does to the availability of one bucket. Where the truth's answer does not say
// whether it did, maybe is true.
type effect struct {
	bucket reservation.Bucket
	delta  int64
	maybe  bool
	// passing is what the truth may lack only while the operation is under way: a claim's units are deducted from the
	// ledger's figure before its hold is finished, and another claim's finish may bring that figure to Redis in between.
	passing bool
}

// Span follows one operation from the router's door to its end. Its methods are called in order, by one goroutine
// at a time: Decided or Undecided once; then, if it was decided, Compare or Gap once.
type Span struct {
	engine *Engine
	pair   Pair

	effects  []effect
	decided  bool
	finished bool // compared or gap
	gap      bool
	// overtaken: a later step of the reservation was there first, so the mirror's time says nothing of its speed.
	overtaken bool
	// void: the hold reached the mirror past its expiry and took no stock there. The step that ends it in the truth
	// closes the account of both.
	void bool
	// mirrorFrom and mirrorTo bound when the mirror took the operation's effect. A zero mirrorTo is "not yet".
	mirrorFrom, mirrorTo time.Time

	prev, next *Span // the engine's list of live spans, in order of Begin
	listed     bool
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
	Stamp    reservation.Stamp
	// Moved is true where the operation moved units of its lines in the truth.
	Moved bool
	// Adjustment is set for an adjustment that was carried out.
	Adjustment *reservation.Adjustment
	// Ended is when the truth had answered; zero: now.
	Ended time.Time
}

// Decided notes the truth's answer.
func (s *Span) Decided(o Outcome) {
	now := o.Ended
	if now.IsZero() {
		now = s.engine.now()
	}
	s.pair.Shop, s.pair.ID, s.pair.KeyHash, s.pair.Stamp = o.Shop, o.ID, o.KeyHash, o.Stamp
	s.pair.Lines, s.pair.Replayed = o.Lines, o.Replayed
	s.pair.Truth.Decision, s.pair.Truth.Record, s.pair.Truth.Levels = o.Decision, o.Record, o.Levels
	if o.Record != nil {
		s.pair.Truth.State = o.Record.State
	}
	s.pair.Truth.Ended = now
	s.mirrorFrom = now
	s.engine.register(s, effectsOf(s.pair.Op, o))
}

// Undecided ends an operation whose outcome in the truth is not known, or that the truth refused to take. What it
// may have done is remembered: o is what the caller asked for.
func (s *Span) Undecided(reason GapReason, o Outcome) {
	s.pair.Truth.Ended = s.engine.now()
	s.pair.Shop, s.pair.ID, s.pair.Lines, s.pair.Stamp = o.Shop, o.ID, o.Lines, o.Stamp
	s.mirrorFrom = s.pair.Truth.Began
	s.engine.register(s, perhaps(s.pair.Op, o, reason))
	s.Gap(reason)
	if reason == GapUnknown && len(o.Lines) == 0 {
		s.engine.remember(s)
	}
}

// perhaps gives what an operation without an answer may have done.
func perhaps(op reservation.Op, o Outcome, reason GapReason) []effect {
	if reason != GapUnknown {
		return nil
	}
	o.Moved, o.Replayed = true, false
	effects := effectsOf(op, o)
	for i := range effects {
		effects[i].maybe = true
	}
	return effects
}

// MirrorBegins notes that the mirror starts on the operation.
func (s *Span) MirrorBegins() { s.MirrorBeganAt(s.engine.now()) }

// MirrorBeganAt is MirrorBegins for a mirror that was written before the caller was answered.
func (s *Span) MirrorBeganAt(at time.Time) { s.pair.Mirror.Began = at }

// Compare ends the operation with the mirror's judgement.
func (s *Span) Compare(j reservation.Judgement) {
	if j.Backfilled {
		s.Gap(GapBackfilled)
		return
	}
	now := s.engine.now()
	switch {
	case s.pair.Mirror.Began.IsZero(): // the operation's own protocol wrote both
		s.pair.Mirror.Began = s.pair.Truth.Began
	case j.Overtaken: // a later step stored and judged it, at some time since the answer
		s.pair.Mirror.Began, s.overtaken = s.pair.Truth.Ended, true
	}
	s.pair.Mirror.Ended = now
	s.pair.Mirror.Decision, s.pair.Mirror.State = j.Decision, j.State
	s.pair.Mirror.Record, s.pair.Mirror.Levels = j.Record, j.Levels
	s.void = s.pair.Op == reservation.OpReserve && !s.pair.Replayed && s.pair.Truth.State.TakesUnits() && j.State == reservation.Expired
	s.engine.compared(s, now)
}

// Gap ends the operation without a comparison: catch-up has to see to it.
func (s *Span) Gap(reason GapReason) { s.engine.gapped(s, reason) }

func effectsOf(op reservation.Op, o Outcome) []effect {
	if o.Replayed {
		return nil
	}
	if a := o.Adjustment; a != nil {
		return []effect{{bucket: a.Bucket, delta: a.Delta}}
	}
	sign := int64(0)
	switch op {
	case reservation.OpReserve:
		sign = -1
	case reservation.OpClaim: // a late one takes what its hold had given back; a refused one gives back
		sign = -1
		if o.Decision == reservation.RefundRequired {
			sign = 1
		}
	case reservation.OpRelease, reservation.OpExpire:
		sign = 1
	case reservation.OpAdjust:
	}
	passing := op == reservation.OpClaim && !o.Moved && o.Decision == reservation.ClaimedOK
	if (!o.Moved && !passing) || sign == 0 {
		return nil
	}
	effects := make([]effect, len(o.Lines))
	for i, l := range o.Lines {
		effects[i] = effect{l.Bucket(o.Shop), sign * l.Quantity, op == reservation.OpClaim, passing}
	}
	return effects
}

// GapReason says why an operation was not compared.
type GapReason string

// The reasons. The first three are the truth's, the others the mirror's.
const (
	GapUnknown     GapReason = "unknown"        // the truth's outcome is not known
	GapUnavailable GapReason = "unavailable"    // the truth could not be asked, or was busy
	GapRefused     GapReason = "frozen"         // the pod or bucket is frozen
	GapQueueFull   GapReason = "queue_full"     // the mirror's queue was full
	GapBreakerOpen GapReason = "breaker_open"   // the mirror's breaker was open
	GapTimeout     GapReason = "mirror_timeout" // the mirror did not answer within its deadline
	GapError       GapReason = "mirror_error"   // the mirror failed
	GapStale       GapReason = "stale"          // the mirror's fence refused an older epoch
	GapPanic       GapReason = "panic"          // the mirror's code panicked
	GapShutdown    GapReason = "shutdown"       // the router stopped first
	GapBackfilled  GapReason = "backfilled"     // its reserve was missing in the mirror and was brought over now
	GapIncoherent  GapReason = "incoherent"     // the pair lacked a decision: a fault in this program
)
