package storetest

import (
	"errors"
	"fmt"

	"github.com/twinhold/twinhold/reservation"
)

func adjustCases() []testCase {
	return []testCase{
		{name: "received", run: adjustReceived},
		{name: "written_off", run: adjustWrittenOff},
		{name: "below_what_is_promised_is_refused", run: adjustShort},
		{name: "below_what_is_promised_by_force", run: adjustForced},
		{name: "below_nothing_is_refused_even_by_force", run: adjustBelowZero},
		{name: "replay_by_id", run: adjustReplay},
		{name: "one_id_50_times_at_once", run: adjustAtOnce},
		{name: "same_id_other_delta_is_a_conflict", run: adjustConflict},
		{name: "same_id_in_another_shop_is_another", run: adjustOtherShop},
		{name: "refused_can_be_tried_again_with_its_id", run: adjustRefusedThenDone},
		{name: "unknown_bucket", run: adjustUnknown},
		{name: "more_than_a_bucket_can_hold", run: adjustOverflow},
		{name: "invalid_is_refused_before_anything_is_touched", run: adjustInvalid},
		{name: "ids_differ_byte_for_byte", run: adjustByteForByte},
		{name: "write_offs_against_buyers", run: adjustAgainstBuyers},
	}
}

func adjustReceived(e *env) {
	e.stock(2)
	e.rejected(line(1, 5))
	version := e.availability(1).Version
	res := e.adjust("delivery", 1, 10, false)
	if res.Replayed || res.Forced {
		e.Fatalf("a delivery: replayed %t, forced %t", res.Replayed, res.Forced)
	}
	if res.Figures.OnHand != 12 || res.Figures.Version <= version || res.Figures.Bucket != e.bucket(1) {
		e.Fatalf("figures are %+v; want 12 on hand above version %d", res.Figures, version)
	}
	e.figures(1, 12, 0, 12)
	e.granted(line(1, 5))
	e.figures(1, 7, 5, 12)
}

func adjustWrittenOff(e *env) {
	e.stock(10)
	e.granted(line(1, 4))
	if res := e.adjust("broken", 1, -6, false); res.Forced || res.Figures.OnHand != 4 {
		e.Fatalf("a write-off of what nobody holds: forced %t, %d on hand", res.Forced, res.Figures.OnHand)
	}
	e.figures(1, 0, 4, 4)
	e.rejected(line(1, 1))
}

func (e *env) wantShort(err error, asked, available int64) {
	e.Helper()
	var short *reservation.ShortError
	if !errors.As(err, &short) {
		e.Fatalf("want a refusal for want of stock, got: %v", err)
	}
	if short.Bucket != e.bucket(1) || short.Asked != asked || short.Available != available {
		e.Fatalf("refused with %+v; want %d asked, %d available", short, asked, available)
	}
}

func adjustShort(e *env) {
	e.stock(10)
	id := e.granted(line(1, 7))
	_, err := e.tryAdjust(reservation.Adjustment{ID: "broken", Bucket: e.bucket(1), Delta: -4})
	e.wantShort(err, 4, 3)
	e.figures(1, 3, 7, 10)
	e.adjust("broken-2", 1, -3, false)
	e.figures(1, 0, 7, 7)
	e.claim(id, reservation.Claimed, false)
	e.figures(1, 0, 0, 0)
}

func adjustForced(e *env) {
	e.stock(10)
	a, b := e.granted(line(1, 4)), e.granted(line(1, 3))
	res := e.adjust(forcedPrefix+"fire", 1, -5, true)
	if !res.Forced || res.Figures.OnHand != 5 {
		e.Fatalf("forced below what is promised: forced %t, %d on hand", res.Forced, res.Figures.OnHand)
	}
	e.figures(1, -2, 7, 5)
	e.invariants()
	e.rejected(line(1, 1))
	e.claim(a, reservation.Claimed, false)
	e.figures(1, -2, 3, 1)
	e.claim(b, reservation.Refused, false)
	e.figures(1, 1, 0, 1)
	if res := e.adjust(forcedPrefix+"gentle", 1, -1, true); res.Forced {
		e.Fatalf("an adjustment that needed no force says that it was forced")
	}
	e.figures(1, 0, 0, 0)
}

func adjustBelowZero(e *env) {
	e.stock(10)
	e.granted(line(1, 7))
	for _, force := range []bool{false, true} {
		_, err := e.tryAdjust(reservation.Adjustment{ID: fmt.Sprintf("theft-%t", force), Bucket: e.bucket(1), Delta: -11, Force: force})
		var short *reservation.ShortError
		if !errors.As(err, &short) {
			e.Fatalf("11 off 10 (force: %t): got %v; want a refusal", force, err)
		}
	}
	e.figures(1, 3, 7, 10)
}

func adjustReplay(e *env) {
	e.stock(10)
	e.adjust("delivery", 1, 5, false)
	e.adjust("broken", 1, -3, false)
	for range 3 {
		for id, delta := range map[string]int64{"delivery": 5, "broken": -3} {
			if res := e.adjust(id, 1, delta, false); !res.Replayed {
				e.Fatalf("adjustment %q again is not told to be a replay", id)
			}
		}
	}
	e.figures(1, 12, 0, 12)
	e.granted(line(1, 12))
	if res := e.adjust("broken", 1, -3, false); !res.Replayed {
		e.Fatalf("a write-off that was carried out is refused on its replay")
	}
	e.figures(1, 0, 12, 12)
}

func adjustAtOnce(e *env) {
	e.stock(1000)
	want := int64(1000)
	for i := range rounds(4, 40) {
		delta := int64(3 - 5*(i%2))
		id := e.key()
		const callers = 50
		errs := make([]error, callers)
		together(many(callers, func(i int) {
			_, errs[i] = retried(e, func() (reservation.AdjustResult, error) {
				return e.tryAdjust(reservation.Adjustment{ID: id, Bucket: e.bucket(1), Delta: delta})
			})
		})...)
		for _, err := range errs {
			if err != nil {
				e.Fatalf("adjust: %v", err)
			}
		}
		want += delta
		e.figures(1, want, 0, want)
	}
}

func adjustConflict(e *env) {
	e.stock(10, 10)
	e.adjust("a", 1, 5, false)
	for _, adj := range []reservation.Adjustment{
		{ID: "a", Bucket: e.bucket(1), Delta: 6},
		{ID: "a", Bucket: e.bucket(1), Delta: -5},
		{ID: "a", Bucket: e.bucket(2), Delta: 5},
	} {
		if _, err := e.tryAdjust(adj); !errors.Is(err, reservation.ErrKeyConflict) {
			e.Fatalf("adjustment %+v: got %v; want a conflict", adj, err)
		}
	}
	e.figures(1, 15, 0, 15)
	e.figures(2, 10, 0, 10)
}

func adjustOtherShop(e *env) {
	other := *e
	other.shop++
	e.stock(10)
	other.stock(10)
	e.adjust("a", 1, 5, false)
	if res := other.adjust("a", 1, -2, false); res.Replayed {
		e.Fatalf("an adjustment of another shop is a replay")
	}
	e.figures(1, 15, 0, 15)
	other.figures(1, 8, 0, 8)
}

// adjustRefusedThenDone: a refusal changes nothing and is not remembered.
func adjustRefusedThenDone(e *env) {
	e.stock(10)
	id := e.granted(line(1, 7))
	_, err := e.tryAdjust(reservation.Adjustment{ID: "broken", Bucket: e.bucket(1), Delta: -4})
	e.wantShort(err, 4, 3)
	e.release(id)
	if res := e.adjust("broken", 1, -4, false); res.Replayed {
		e.Fatalf("what was refused before is told to be a replay")
	}
	e.figures(1, 6, 0, 6)
}

func adjustUnknown(e *env) {
	e.stock(10)
	for _, delta := range []int64{5, -5} {
		_, err := e.tryAdjust(reservation.Adjustment{ID: e.key(), Bucket: e.bucket(7), Delta: delta})
		var unknown *reservation.UnknownBucketError
		if !errors.As(err, &unknown) || unknown.Bucket != e.bucket(7) {
			e.Fatalf("adjust an unknown bucket by %d: got %v", delta, err)
		}
	}
	e.figures(1, 10, 0, 10)
}

func adjustOverflow(e *env) {
	e.stock(10)
	_, err := e.tryAdjust(reservation.Adjustment{ID: "too much", Bucket: e.bucket(1), Delta: reservation.MaxOnHand})
	if code := reservation.CodeOf(err); code != reservation.CodeInvalidArgument {
		e.Fatalf("10 + 2^50: got %v (%s); want invalid_argument", err, code)
	}
	e.figures(1, 10, 0, 10)
	e.adjust("most", 1, reservation.MaxOnHand-10, false)
	e.figures(1, reservation.MaxOnHand, 0, reservation.MaxOnHand)
	id := e.granted(line(1, reservation.MaxQuantity))
	e.figures(1, reservation.MaxOnHand-reservation.MaxQuantity, reservation.MaxQuantity, reservation.MaxOnHand)
	e.release(id)
	e.adjust("back", 1, 10-reservation.MaxOnHand, false)
	e.figures(1, 10, 0, 10)
}

func adjustInvalid(e *env) {
	e.stock(10)
	for name, adj := range map[string]reservation.Adjustment{
		"delta 0":           {ID: "a", Bucket: e.bucket(1)},
		"delta above 2^50":  {ID: "a", Bucket: e.bucket(1), Delta: reservation.MaxOnHand + 1},
		"delta below -2^50": {ID: "a", Bucket: e.bucket(1), Delta: -reservation.MaxOnHand - 1, Force: true},
		"empty id":          {Bucket: e.bucket(1), Delta: 1},
		"id of 256 bytes":   {ID: fmt.Sprintf("%0256d", 1), Bucket: e.bucket(1), Delta: 1},
		"shop 0":            {ID: "a", Bucket: reservation.Bucket{Item: 1, Group: 1}, Delta: 1},
		"negative item":     {ID: "a", Bucket: reservation.Bucket{Shop: e.shop, Item: -1, Group: 1}, Delta: 1},
	} {
		_, err := e.tryAdjust(adj)
		if code := reservation.CodeOf(err); code != reservation.CodeInvalidArgument {
			e.Fatalf("%s: got %v (%s); want invalid_argument", name, err, code)
		}
	}
	e.figures(1, 10, 0, 10)
	if res := e.adjust("a", 1, 1, false); res.Replayed {
		e.Fatalf("an invalid adjustment took its id")
	}
}

func adjustByteForByte(e *env) {
	ids := []string{"adj-a", "adj-A", "adj-a ", "adj-á", "adj-a\u0301", "adj-a:1"}
	e.stock(10)
	for _, id := range ids {
		if res := e.adjust(id, 1, 1, false); res.Replayed {
			e.Fatalf("adjustment id %q is the same as another to the store", id)
		}
	}
	e.figures(1, 16, 0, 16)
}

// adjustAgainstBuyers: write-offs and reserves want the same last units. Nothing goes below zero, and what was
// answered is what happened.
func adjustAgainstBuyers(e *env) {
	for range rounds(10, 100) {
		item := e.keys.Add(1)
		e.stockAll([]reservation.Stocking{{Bucket: e.bucket(item), Quantity: 10}})
		const callers = 16
		held, off := make([]int64, callers), make([]int64, callers)
		errs := make([]error, callers)
		keys := make([]string, callers)
		for i := range keys {
			keys[i] = e.key()
		}
		together(many(callers, func(i int) {
			if i%2 == 0 {
				res, err := e.try(keys[i], line(item, 2))
				if errs[i] = err; err == nil && res.Record.Outcome == reservation.Granted {
					held[i] = 2
				}
				return
			}
			_, err := retried(e, func() (reservation.AdjustResult, error) {
				return e.tryAdjust(reservation.Adjustment{ID: keys[i], Bucket: e.bucket(item), Delta: -2})
			})
			var short *reservation.ShortError
			if errors.As(err, &short) {
				return
			}
			if errs[i] = err; err == nil {
				off[i] = 2
			}
		})...)
		var heldSum, offSum int64
		for i := range errs {
			if errs[i] != nil {
				e.Fatalf("%v", errs[i])
			}
			heldSum += held[i]
			offSum += off[i]
		}
		if heldSum+offSum != 10 {
			e.Fatalf("%d held + %d written off of 10: 16 callers wanted 2 each", heldSum, offSum)
		}
		e.figures(item, 0, heldSum, 10-offSum)
	}
}
