package storetest

import (
	"github.com/twinhold/twinhold/reservation"
)

func lateCases() []testCase {
	return []testCase{
		{name: "available_after_the_sweep", run: func(e *env) { lateAvailable(e, true) }},
		{name: "available_before_the_sweep", run: func(e *env) { lateAvailable(e, false) }},
		{name: "available_after_the_sweep_refuse", late: reservation.RefuseLate, run: func(e *env) { lateAvailable(e, true) }},
		{name: "available_before_the_sweep_refuse", late: reservation.RefuseLate, run: func(e *env) { lateAvailable(e, false) }},
		{name: "forced_at_anothers_expense", run: lateForced},
		{name: "forced_in_part_from_what_is_available", run: lateForcedInPart},
		{name: "forced_on_two_lines", run: lateForcedTwoLines},
		{name: "force_refuses_what_is_not_on_hand", run: lateNothingOnHand},
		{name: "refused", late: reservation.RefuseLate, run: lateRefused},
		{name: "refused_when_one_line_is_short", late: reservation.RefuseLate, run: lateRefusedTwoLines},
		{name: "in_time_is_not_late", run: inTime},
	}
}

// lateAvailable: nobody else took the units, so a late claim takes them again; it is on the record.
func lateAvailable(e *env, swept bool) {
	e.stock(10)
	id := e.grantedFor(shortTTL, line(1, 4))
	e.pass(e.get(id).ExpiresAt)
	if swept {
		e.expire(id)
	}
	res := e.claim(id, reservation.Claimed, true)
	if res.Replayed || !res.Record.Late {
		e.Fatalf("a late claim: replayed %t, late on the record %t", res.Replayed, res.Record.Late)
	}
	e.figures(1, 6, 0, 6)
	if again := e.claim(id, reservation.Claimed, true); !again.Replayed {
		e.Fatalf("a late claim again is not told to be a replay")
	}
	e.sweep()
	e.state(id, reservation.Claimed)
	e.figures(1, 6, 0, 6)
	e.wantEntries(id, line(1, 4))
}

// lateForced: somebody else holds the units and has not paid. The late claim is carried out at his expense, and he
// is told to refund.
func lateForced(e *env) {
	e.stock(10)
	late := e.grantedFor(shortTTL, line(1, 7))
	e.expire(late)
	victim := e.granted(line(1, 6))
	e.figures(1, 4, 6, 10)

	e.claim(late, reservation.Claimed, true)
	e.figures(1, -3, 6, 3)
	e.invariants()
	e.rejected(line(1, 1))
	e.wantEntries(late, line(1, 7))

	e.claim(victim, reservation.Refused, false)
	e.figures(1, 3, 0, 3)
	if again := e.claim(victim, reservation.Refused, false); !again.Replayed {
		e.Fatalf("the claim of a refused hold is not told to be a replay")
	}
	_, err := e.tryRelease(e.shop, victim)
	e.wantConflict(err, reservation.OpRelease, reservation.Refused)
	e.wantEntries(victim)
	e.figures(1, 3, 0, 3)
	e.granted(line(1, 3))
}

func lateForcedInPart(e *env) {
	e.stock(10)
	late := e.grantedFor(shortTTL, line(1, 4))
	e.expire(late)
	other := e.granted(line(1, 8))
	e.claim(late, reservation.Claimed, true) // 2 were available, 2 are taken from the other
	e.figures(1, -2, 8, 6)
	e.invariants()
	e.release(other)
	e.figures(1, 6, 0, 6)
}

func lateForcedTwoLines(e *env) {
	e.stock(5, 5)
	late := e.grantedFor(shortTTL, line(1, 3), line(2, 3))
	e.expire(late)
	victim := e.granted(line(2, 5))
	e.claim(late, reservation.Claimed, true)
	e.figures(1, 2, 0, 2)
	e.figures(2, -3, 5, 2)
	e.invariants()
	e.wantEntries(late, line(1, 3), line(2, 3))
	e.claim(victim, reservation.Refused, false)
	e.figures(2, 2, 0, 2)
}

// lateNothingOnHand: even force deducts only what is there.
func lateNothingOnHand(e *env) {
	e.stock(5)
	late := e.grantedFor(shortTTL, line(1, 4))
	e.expire(late)
	other := e.granted(line(1, 5))
	e.claim(other, reservation.Claimed, false)
	res := e.claim(late, reservation.Refused, true)
	if res.Replayed {
		e.Fatalf("the first answer says that it is a replay")
	}
	if again := e.claim(late, reservation.Refused, true); !again.Replayed {
		e.Fatalf("a refused claim again is not told to be a replay")
	}
	e.figures(1, 0, 0, 0)
	e.wantEntries(late)
}

func lateRefused(e *env) {
	e.stock(10)
	late := e.grantedFor(shortTTL, line(1, 7))
	e.expire(late)
	other := e.granted(line(1, 6))
	e.claim(late, reservation.Refused, true)
	e.figures(1, 4, 6, 10)
	e.adjust("delivery", 1, 10, false)
	if again := e.claim(late, reservation.Refused, true); !again.Replayed {
		e.Fatalf("a refused claim does not replay once there is stock: somebody was refunded")
	}
	e.figures(1, 14, 6, 20)
	_, err := e.tryRelease(e.shop, late)
	e.wantConflict(err, reservation.OpRelease, reservation.Refused)
	e.claim(other, reservation.Claimed, false)
	e.figures(1, 14, 0, 14)
	e.wantEntries(late)
}

// lateRefusedTwoLines: all or nothing holds for a late claim too.
func lateRefusedTwoLines(e *env) {
	e.stock(5, 5)
	late := e.grantedFor(shortTTL, line(1, 3), line(2, 3))
	e.expire(late)
	e.granted(line(2, 5))
	e.claim(late, reservation.Refused, true)
	e.figures(1, 5, 0, 5)
	e.figures(2, 0, 5, 5)
	e.wantEntries(late)
}

func inTime(e *env) {
	e.stock(10)
	id := e.granted(line(1, 4))
	if res := e.claim(id, reservation.Claimed, false); res.Record.Late {
		e.Fatalf("a claim in time is late on the record")
	}
	e.figures(1, 6, 0, 6)
}
