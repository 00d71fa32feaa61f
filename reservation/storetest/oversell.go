package storetest

import (
	"slices"

	"github.com/twinhold/twinhold/reservation"
)

func oversellCases() []testCase {
	return []testCase{
		{name: "two_buyers_7_and_6_of_10", run: func(e *env) { twoBuyers(e, 7, 6) }},
		{name: "two_buyers_6_and_7_of_10", run: func(e *env) { twoBuyers(e, 6, 7) }},
		{name: "two_buyers_7_and_6_of_10_at_once", run: twoBuyersAtOnce},
		{name: "the_other_buyer_after_the_first_expired", run: otherAfterExpiry},
		{name: "all_or_nothing_2_and_4_of_5_and_3", run: func(e *env) { allOrNothing(e, line(1, 2), line(2, 4)) }},
		{name: "all_or_nothing_4_and_2_of_3_and_5", run: allOrNothingReversed},
		{name: "all_or_nothing_lines_in_the_other_order", run: func(e *env) { allOrNothing(e, line(2, 4), line(1, 2)) }},
		{name: "two_buckets_that_succeed", run: twoBuckets},
		{name: "groups_are_buckets_of_their_own", run: groupsApart},
		{name: "item_on_two_lines_is_summed", run: summedLines},
		{name: "item_on_two_lines_is_rejected_by_its_sum", run: summedLinesRejected},
		{name: "cart_of_749_lines", run: largeCart},
		{name: "cart_of_749_lines_with_one_short", run: largeCartShort},
		{name: "line_of_74215_pieces", run: largeLine},
		{name: "last_unit", run: lastUnit},
		{name: "stock_of_nothing_is_sold_out_not_unknown", run: soldOutFromTheStart},
		{name: "stocking_twice_changes_nothing", run: stockTwice},
	}
}

// twoBuyers: exactly one is granted, and when he gives up the other can be.
func twoBuyers(e *env, first, second int64) {
	e.stock(10)
	id := e.granted(line(1, first))
	res := e.rejected(line(1, second))
	want := []reservation.Shortage{{Item: 1, Group: 1, Requested: second, Available: 10 - first}}
	if !slices.Equal(res.Record.Shortages, want) {
		e.Fatalf("short lines are %v; want %v", res.Record.Shortages, want)
	}
	e.figures(1, 10-first, first, 10)
	e.release(id)
	e.figures(1, 10, 0, 10)
	e.granted(line(1, second))
	e.figures(1, 10-second, second, 10)
}

// twoBuyersAtOnce: whoever is first, there is one grant; and the loser can have the units once they are back.
func twoBuyersAtOnce(e *env) {
	for range rounds(20, 200) {
		item := e.keys.Add(1)
		e.stockAll([]reservation.Stocking{{Bucket: e.bucket(item), Quantity: 10}})
		quantities := []int64{7, 6}
		results := make([]reservation.Result, 2)
		errs := make([]error, 2)
		keys := []string{e.key(), e.key()}
		together(many(2, func(i int) { results[i], errs[i] = e.try(keys[i], line(item, quantities[i])) })...)
		winner := -1
		for i, res := range results {
			if errs[i] != nil {
				e.Fatalf("reserve: %v", errs[i])
			}
			if res.Record.Outcome == reservation.Granted {
				if winner >= 0 {
					e.Fatalf("7 and 6 of 10 were both granted")
				}
				winner = i
			}
		}
		if winner < 0 {
			e.Fatalf("neither 7 nor 6 of 10 was granted")
		}
		e.figures(item, 10-quantities[winner], quantities[winner], 10)
		e.release(results[winner].Record.ID)
		loser := quantities[1-winner]
		e.granted(line(item, loser))
		e.figures(item, 10-loser, loser, 10)
	}
}

func otherAfterExpiry(e *env) {
	e.stock(10)
	id := e.grantedFor(shortTTL, line(1, 7))
	e.expire(id)
	e.figures(1, 10, 0, 10)
	e.granted(line(1, 6))
	e.figures(1, 4, 6, 10)
}

func allOrNothing(e *env, lines ...reservation.Line) {
	e.stock(5, 3)
	res := e.rejected(lines...)
	want := []reservation.Shortage{{Item: 2, Group: 1, Requested: 4, Available: 3}}
	if !slices.Equal(res.Record.Shortages, want) {
		e.Fatalf("short lines are %v; want %v", res.Record.Shortages, want)
	}
	e.figures(1, 5, 0, 5)
	e.figures(2, 3, 0, 3)
}

func allOrNothingReversed(e *env) {
	e.stock(3, 5)
	e.rejected(line(1, 4), line(2, 2))
	e.figures(1, 3, 0, 3)
	e.figures(2, 5, 0, 5)
}

func twoBuckets(e *env) {
	e.stock(5, 3)
	id := e.granted(line(1, 2), line(2, 3))
	e.figures(1, 3, 2, 5)
	e.figures(2, 0, 3, 3)
	e.claim(id, reservation.Claimed, false)
	e.figures(1, 3, 0, 3)
	e.figures(2, 0, 0, 0)
}

func groupsApart(e *env) {
	near, far := e.bucket(1), e.bucket(1)
	far.Group = 2
	e.stockAll([]reservation.Stocking{{Bucket: near, Quantity: 1}, {Bucket: far, Quantity: 4}})
	e.rejected(line(1, 2))
	id := e.granted(reservation.Line{Item: 1, Group: 2, Quantity: 4})
	e.figures(1, 1, 0, 1)
	e.release(id)
}

func summedLines(e *env) {
	e.stock(10)
	id := e.granted(line(1, 2), line(1, 3))
	e.figures(1, 5, 5, 10)
	if rec := e.get(id); !slices.Equal(rec.Lines, []reservation.Line{line(1, 5)}) {
		e.Fatalf("the record's lines are %v; want one line of 5", rec.Lines)
	}
	e.claim(id, reservation.Claimed, false)
	e.figures(1, 5, 0, 5)
}

func summedLinesRejected(e *env) {
	e.stock(4)
	e.rejected(line(1, 2), line(1, 3))
	e.figures(1, 4, 0, 4)
}

// largeCartLines is the largest cart of the recorded orders.
const largeCartLines = 749

func stockLargeCart(e *env, short int64) []reservation.Line {
	var (
		stock []reservation.Stocking
		lines []reservation.Line
	)
	for i := int64(1); i <= largeCartLines; i++ {
		q := 1 + i%5
		have := 2 * q
		if i == short {
			have = q - 1
		}
		stock = append(stock, reservation.Stocking{Bucket: e.bucket(i), Quantity: have})
		lines = append(lines, line(i, q))
	}
	slices.Reverse(lines)
	e.stockAll(stock)
	return lines
}

func largeCart(e *env) {
	lines := stockLargeCart(e, 0)
	id := e.granted(lines...)
	again := e.granted(lines...)
	e.rejected(lines...)
	for _, i := range []int64{1, 400, largeCartLines} {
		e.figures(i, 0, 2*(1+i%5), 2*(1+i%5))
	}
	e.claim(id, reservation.Claimed, false)
	e.release(again)
	for _, i := range []int64{1, 400, largeCartLines} {
		e.figures(i, 1+i%5, 0, 1+i%5)
	}
	if n := len(e.entriesOf(id)); n != largeCartLines {
		e.Fatalf("the claim left %d entries; want %d", n, largeCartLines)
	}
}

func largeCartShort(e *env) {
	lines := stockLargeCart(e, 400)
	res := e.rejected(lines...)
	want := []reservation.Shortage{{Item: 400, Group: 1, Requested: 1, Available: 0}}
	if !slices.Equal(res.Record.Shortages, want) {
		e.Fatalf("short lines are %v; want %v", res.Record.Shortages, want)
	}
	e.figures(1, 4, 0, 4)
	e.figures(largeCartLines, 10, 0, 10)
}

// largeLinePieces is the largest line of the recorded orders.
const largeLinePieces = 74_215

func largeLine(e *env) {
	e.stock(2*largeLinePieces+1, 10)
	id := e.granted(line(1, largeLinePieces), line(2, 1))
	e.figures(1, largeLinePieces+1, largeLinePieces, 2*largeLinePieces+1)
	e.claim(id, reservation.Claimed, false)
	e.figures(1, largeLinePieces+1, 0, largeLinePieces+1)
	id = e.granted(line(1, largeLinePieces))
	e.granted(line(1, 1))
	e.rejected(line(1, 1))
	e.release(id)
	e.figures(1, largeLinePieces, 1, largeLinePieces+1)
}

func lastUnit(e *env) {
	e.stock(1)
	id := e.granted(line(1, 1))
	e.rejected(line(1, 1))
	e.release(id)
	id = e.granted(line(1, 1))
	e.claim(id, reservation.Claimed, false)
	e.rejected(line(1, 1))
	e.figures(1, 0, 0, 0)
}

func soldOutFromTheStart(e *env) {
	e.stock(0)
	e.rejected(line(1, 1))
	e.figures(1, 0, 0, 0)
}

func stockTwice(e *env) {
	e.stock(10)
	e.granted(line(1, 4))
	e.stock(25)
	e.figures(1, 6, 4, 10)
}
