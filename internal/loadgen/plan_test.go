package loadgen_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/twinhold/twinhold/internal/loadgen"
	"github.com/twinhold/twinhold/reservation"
)

// csvOf writes rows of invoice, code, quantity, time of day, all in one country.
func csvOf(rows ...string) string {
	var b strings.Builder
	b.WriteString(header)
	for _, r := range rows {
		f := strings.Fields(r)
		fmt.Fprintf(&b, "%s,%s,%s,2011-12-05 %s:00,EIRE\n", f[0], f[1], f[2], f[3])
	}
	return b.String()
}

// told lists a plan's events in words: op, key or id, and the change of an adjustment; ! marks a retry.
func told(p loadgen.Plan) []string {
	var out []string
	for _, e := range p.Events {
		s := e.Op.String() + " "
		if e.Cart >= 0 {
			s += p.Carts[e.Cart].Key
		} else {
			s += fmt.Sprintf("%s %+d", e.Adjust.ID, e.Adjust.Delta)
		}
		if e.Attempt > 1 {
			s += "!"
		}
		out = append(out, s)
	}
	return out
}

// named finds an invoice number whose first copy has this fate, and none of whose calls is retried.
func named(t *testing.T, want loadgen.Fate, not ...string) string {
	t.Helper()
	for i := range 10_000 {
		name := fmt.Sprint(500_000 + i)
		p := mustPlan(t, loadgen.PlanOptions{Shop: 1}, read(t, csvOf(name+" 10001 1 10:00")))
		retried := slices.ContainsFunc(p.Events, func(e loadgen.Event) bool { return e.Attempt > 1 })
		if p.Carts[0].Fate == want && !retried && !slices.Contains(not, name) {
			return name
		}
	}
	t.Fatalf("no invoice of 10,000 is meant to %s", want)
	return ""
}

func TestIdsAreRanks(t *testing.T) {
	rec := read(t, header+
		"1,20000b,1,2011-12-05 10:00:00,Spain\n1,20000B,1,2011-12-05 10:00:00,EIRE\n1,10000,1,2011-12-05 10:00:00,Spain\n1,POST,1,2011-12-05 10:00:00,Atlantis\n")
	p := mustPlan(t, loadgen.PlanOptions{Shop: 9}, rec)
	want := loadgen.Map{Items: []string{"10000", "20000B", "20000b"}, Groups: []string{"EIRE", "Spain"}}
	if diff := cmp.Diff(want, p.Map); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]reservation.Line{{Item: 3, Group: 2, Quantity: 1}, {Item: 2, Group: 1, Quantity: 1}, {Item: 1, Group: 2, Quantity: 1}}, p.Carts[0].Lines); diff != "" {
		t.Error(diff)
	}
	var b bytes.Buffer
	if err := p.Map.Write(&b); err != nil {
		t.Fatal(err)
	}
	if want := "group\t1\tEIRE\ngroup\t2\tSpain\nitem\t1\t10000\nitem\t2\t20000B\nitem\t3\t20000b\n"; b.String() != want {
		t.Errorf("the map reads %q", b.String())
	}
	if p.Recorded.NotGoods["POST"] != 1 || p.Recorded.Rows != 4 {
		t.Errorf("%+v", p.Recorded)
	}
}

func TestAnInvoiceIsACart(t *testing.T) {
	name := named(t, loadgen.FateClaim)
	p := mustPlan(t, loadgen.PlanOptions{Shop: 1, TTL: time.Minute}, read(t, csvOf(
		name+" 10001 2 10:00", name+" 10002 1 10:00", name+" 10001 3 10:01", name+" 10003 -7 10:01", name+" POST 1 10:00", "9 POST 1 09:00")))
	if got, want := told(p), []string{"reserve " + name, "adjust " + name + "/3/1 -7", "claim " + name}; !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
	// A code that stands twice stays twice: summing is the store's work, and it should be put to it.
	want := []reservation.Line{{Item: 1, Group: 1, Quantity: 2}, {Item: 2, Group: 1, Quantity: 1}, {Item: 1, Group: 1, Quantity: 3}}
	if c := p.Carts[0]; !slices.Equal(c.Lines, want) || c.TTL != time.Minute {
		t.Errorf("cart %+v", c)
	}
	wantStock := []reservation.Stocking{
		{Bucket: reservation.Bucket{Shop: 1, Item: 1, Group: 1}, Quantity: 5},
		{Bucket: reservation.Bucket{Shop: 1, Item: 2, Group: 1}, Quantity: 1},
		{Bucket: reservation.Bucket{Shop: 1, Item: 3, Group: 1}, Quantity: 7},
	}
	if diff := cmp.Diff(wantStock, p.Stock); diff != "" {
		t.Error(diff)
	}
	if p.Recorded.Empty != 1 || p.Recorded.WriteOffs != 1 || p.Recorded.Carts != 1 || p.Recorded.Lines != 3 {
		t.Errorf("%+v", p.Recorded)
	}
}

func TestCancellations(t *testing.T) {
	kept := named(t, loadgen.FateExpire)
	kept2 := named(t, loadgen.FateExpire, kept)
	paid := named(t, loadgen.FateClaim)
	for name, tc := range map[string]struct {
		rows []string
		want []string
	}{
		"gives a held cart back whole": {
			[]string{kept + " 10001 2 10:00", kept + " 10002 1 10:00", "C1 10001 -2 11:00", "C1 10002 -1 11:00"},
			[]string{"reserve " + kept, "release " + kept},
		},
		"and more than that": {
			[]string{kept + " 10001 2 10:00", "C1 10001 -5 11:00", "C1 10002 -1 11:00"},
			[]string{"reserve " + kept, "release " + kept, "adjust C1/1/1 +3", "adjust C1/2/1 +1"},
		},
		"a part of a held cart": {
			[]string{kept + " 10001 2 10:00", "C1 10001 -1 11:00"},
			[]string{"reserve " + kept, "adjust C1/1/1 +1"},
		},
		"of a cart that was paid": {
			[]string{paid + " 10001 2 10:00", "C1 10001 -2 11:00"},
			[]string{"reserve " + paid, "claim " + paid, "adjust C1/1/1 +2"},
		},
		"before it is paid": {
			[]string{paid + " 10001 2 10:00", "C1 10001 -2 10:00"},
			[]string{"reserve " + paid, "release " + paid},
		},
		"of the later of two": {
			[]string{kept + " 10001 2 10:00", kept2 + " 10001 2 10:01", "C1 10001 -2 11:00"},
			[]string{"reserve " + kept, "reserve " + kept2, "release " + kept2},
		},
		"each once": {
			[]string{kept + " 10001 2 10:00", "C1 10001 -2 11:00", "C2 10001 -2 12:00"},
			[]string{"reserve " + kept, "release " + kept, "adjust C2/1/1 +2"},
		},
		"not of a cart that comes later": {
			[]string{"C1 10001 -2 09:00", kept + " 10001 2 10:00"},
			[]string{"adjust C1/1/1 +2", "reserve " + kept},
		},
		"one code on two lines": {
			[]string{"C1 10001 -2 09:00", "C1 10001 -3 09:00"},
			[]string{"adjust C1/1/1 +5"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := mustPlan(t, loadgen.PlanOptions{Shop: 1}, read(t, csvOf(tc.rows...)))
			got := slices.DeleteFunc(told(p), func(s string) bool { return strings.HasSuffix(s, "!") })
			if !slices.Equal(got, tc.want) {
				t.Errorf("events %q, want %q", got, tc.want)
			}
		})
	}
}

func TestStock(t *testing.T) {
	// 10001 is wanted by 5 carts, 100 in all; 10002 by 5, of which one wants most; 10003 by 4.
	var rows []string
	for i, q := range [][3]int{{20, 96, 25}, {20, 1, 25}, {20, 1, 25}, {20, 1, 25}, {20, 1, 0}} {
		for item, n := range q {
			if n > 0 {
				rows = append(rows, fmt.Sprintf("%d 1000%d %d 10:0%d", i+1, item+1, n, i))
			}
		}
	}
	rows = append(rows, "C9 10004 -3 11:00")
	rec := read(t, csvOf(rows...))
	for _, tc := range []struct {
		stock  string
		repeat int
		want   []int64
	}{
		{"plenty", 1, []int64{100, 100, 100, 0}},
		{"plenty", 3, []int64{300, 300, 300, 0}},
		{"scarce", 1, []int64{60, 96, 100, 0}},
		{"scarce", 3, []int64{180, 288, 300, 0}},
		{"7", 1, []int64{7, 7, 7, 7}},
		{"7", 3, []int64{21, 21, 21, 21}},
		{"0", 3, []int64{0, 0, 0, 0}},
	} {
		stock, err := loadgen.ParseStock(tc.stock)
		if err != nil || stock.String() != tc.stock {
			t.Fatalf("%s: %v, %v", tc.stock, stock, err)
		}
		var got []int64
		for _, s := range mustPlan(t, loadgen.PlanOptions{Shop: 1, Stock: stock, Repeat: tc.repeat}, rec).Stock {
			got = append(got, s.Quantity)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s, %d copies: %v, want %v", tc.stock, tc.repeat, got, tc.want)
		}
	}
	for _, s := range []string{"", "-1", "many", "1.5", "1125899906842625", "99999999999999999999"} {
		if _, err := loadgen.ParseStock(s); err == nil || !strings.Contains(err.Error(), "use scarce, plenty or a whole number") {
			t.Errorf("ParseStock(%q): %v", s, err)
		}
	}
}

func TestSharesFatesAndOrder(t *testing.T) {
	rec := readDay(t, recordedDays(t)[0])
	p := mustPlan(t, loadgen.PlanOptions{Shop: 1, Repeat: 20, TTL: time.Hour, ExpireTTL: time.Second}, rec)
	fates := make(map[loadgen.Fate]float64)
	keys := make(map[string]bool)
	for _, c := range p.Carts {
		fates[c.Fate]++
		keys[c.Key] = true
		if want := map[bool]time.Duration{true: time.Second, false: time.Hour}[c.Fate == loadgen.FateExpire]; c.TTL != want {
			t.Fatalf("cart %s is left to %s with a ttl of %v", c.Key, c.Fate, c.TTL)
		}
	}
	n := float64(len(p.Carts))
	if c, r, e := fates[loadgen.FateClaim]/n, fates[loadgen.FateRelease]/n, fates[loadgen.FateExpire]/n; c < .75 || c > .85 || r < .08 || r > .17 || e < .04 || e > .12 {
		t.Errorf("claimed %.2f, released %.2f, expired %.2f: want about 0.80, 0.12, 0.08", c, r, e)
	}
	if len(keys) != len(p.Carts) {
		t.Errorf("%d keys for %d carts", len(keys), len(p.Carts))
	}
	retries, calls := 0, 0
	for i, e := range p.Events {
		if i > 0 && e.At.Before(p.Events[i-1].At) {
			t.Fatalf("event %d is earlier than the one before", i)
		}
		if e.After >= i {
			t.Fatalf("event %d waits for %d", i, e.After)
		}
		if e.Attempt > 1 {
			retries++
			if b := p.Events[e.After]; b.Op != e.Op || b.Cart != e.Cart {
				t.Fatalf("event %d retries another call", i)
			}
		} else if e.Cart >= 0 {
			calls++
		}
	}
	if share := float64(retries) / float64(calls); share < .03 || share > .07 {
		t.Errorf("%.3f of calls are retried, want about 0.05", share)
	}
}

// The same input gives the same plan, and one copy's plan does not hang on how many others there are.
func TestPlansAreDeterministic(t *testing.T) {
	rec := readDay(t, recordedDays(t)[1])
	o := loadgen.PlanOptions{Shop: 3, Repeat: 4, Stock: loadgen.Scarce(), KeyPrefix: "p-"}
	if diff := cmp.Diff(mustPlan(t, o, rec), mustPlan(t, o, rec)); diff != "" {
		t.Error(diff)
	}
	for seed := range uint64(3) {
		m := loadgen.MixedOptions{Seed: seed, Shop: 1, Carts: 200, Adjustments: 20}
		if diff := cmp.Diff(mustMixed(t, m), mustMixed(t, m)); diff != "" {
			t.Error(diff)
		}
	}
}

func TestLargeCartsAndLines(t *testing.T) {
	rows := []string{"1 90000 80995 10:00", "C2 90000 -80995 10:12"}
	for i := range 749 {
		rows = append(rows, fmt.Sprintf("3 %d 1 11:00", 10000+i))
	}
	for i := range 1114 { // some days hold an invoice of more lines than one request may have
		rows = append(rows, fmt.Sprintf("4 %d 2 12:00", 10000+i%1110))
	}
	for i := range 1100 {
		rows = append(rows, fmt.Sprintf("5 %d 1 13:00", 10000+i%600)) // which is few enough once it is summed
	}
	p := mustPlan(t, loadgen.PlanOptions{Shop: 1}, read(t, csvOf(rows...)))
	got := make(map[string]int)
	units := make(map[string]int64)
	for _, c := range p.Carts {
		got[c.Key] = len(c.Lines)
		units[c.Key] = reservation.Units(c.Lines)
	}
	if diff := cmp.Diff(map[string]int{"1": 1, "3": 749, "4": 1000, "4/2": 110, "5": 600}, got); diff != "" {
		t.Error(diff)
	}
	if units["4"]+units["4/2"] != 2*1114 || units["5"] != 1100 || p.Recorded.Split != 1 {
		t.Errorf("units %v, %d split", units, p.Recorded.Split)
	}
	s := run(t, p, newModel(p.Stock), loadgen.Options{Clients: 1})
	if s.Reserve.Rejected != 0 || s.Carts.Granted != 5 {
		t.Errorf("%+v", s)
	}
}

func TestPlanRefusals(t *testing.T) {
	one := csvOf("1 10001 1 10:00")
	const reserve = `{"idempotencyKey":"k","lines":[{"itemId":1,"groupId":1,"quantity":1}]}`
	for name, tc := range map[string]struct {
		text string
		opts loadgen.PlanOptions
		want string
	}{
		"no shop":              {one, loadgen.PlanOptions{}, "shop 0 is not a shop id"},
		"repeat too often":     {one, loadgen.PlanOptions{Shop: 1, Repeat: 10_001}, "repeat 10001 is out of range"},
		"repeat less than one": {one, loadgen.PlanOptions{Shop: 1, Repeat: -1}, "repeat -1 is out of range"},
		"ttl negative":         {one, loadgen.PlanOptions{Shop: 1, TTL: -1}, "a ttl is negative"},
		"no goods at all":      {csvOf("1 POST 1 10:00"), loadgen.PlanOptions{Shop: 1}, "f: there is nothing to send"},
		"prefix too long":      {one, loadgen.PlanOptions{Shop: 1, KeyPrefix: strings.Repeat("x", 300)}, "cart 1: idempotencyKey has 301 bytes"},
		"bucket of a cart passes 2^31-1": {
			csvOf("1 10001 2147483647 10:00", "1 10002 1 10:00", "1 10001 1 10:00"),
			loadgen.PlanOptions{Shop: 1},
			"f:4: with this line the invoice's quantity of 10001 in EIRE passes 2147483647",
		},
		"bucket of all carts passes 2^50": {
			csvOf("1 10001 2147483647 10:00"),
			loadgen.PlanOptions{Shop: 1, Repeat: 10_000, Stock: loadgen.Each(1 << 50)},
			"f:2: with this, bucket 1:1:1 would need more than 1125899906842624 pieces",
		},
		"claim of nothing":      {reserve + "\n" + `{"op":"claim","idempotencyKey":"other"}`, loadgen.PlanOptions{Shop: 1}, `f:2: no line above reserves with the key "other"`},
		"claim in another shop": {reserve + "\n" + `{"op":"claim","shopId":2,"idempotencyKey":"k"}`, loadgen.PlanOptions{Shop: 1}, `f:2: no line above`},
		"key with another request": {
			reserve + "\n" + strings.Replace(reserve, `"quantity":1`, `"quantity":2`, 1),
			loadgen.PlanOptions{Shop: 1},
			`f:2: the key "k" was used for another request on line 1`,
		},
		"adjustment twice": {
			strings.Repeat(`{"op":"adjust","itemId":1,"groupId":1,"delta":1,"adjustmentId":"a"}`+"\n", 2),
			loadgen.PlanOptions{Shop: 1},
			`f:2: the adjustment "a" was there before, on line 1`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := loadgen.NewPlan(tc.opts, read(t, tc.text))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
	rec := read(t, one)
	_, err := loadgen.NewPlan(loadgen.PlanOptions{Shop: 1}, rec, rec)
	var pe *loadgen.ParseError
	if !errors.As(err, &pe) || !strings.Contains(err.Error(), "f:2: invoice 1 is in f too") {
		t.Errorf("the same day twice: %v", err)
	}
	if _, err := loadgen.NewPlan(loadgen.PlanOptions{Shop: 1}); err == nil {
		t.Error("a plan of nothing is made")
	}
}

func TestTwoDaysTogether(t *testing.T) {
	days := recordedDays(t)
	a, b := readDay(t, days[0]), readDay(t, days[1])
	p := mustPlan(t, loadgen.PlanOptions{Shop: 1, Stock: loadgen.Plenty()}, b, a)
	if p.Recorded.Rows != a.Rows+b.Rows || !slices.IsSorted(p.Map.Items) {
		t.Errorf("%+v", p.Recorded)
	}
	s := run(t, p, newModel(p.Stock), loadgen.Options{Clients: 1})
	if s.Reserve.Rejected != 0 {
		t.Errorf("%d rejected", s.Reserve.Rejected)
	}
	wholeRun(t, p, s)
}

func TestRequestsThatSayItAll(t *testing.T) {
	text := `{"shopId":2,"idempotencyKey":"a","lines":[{"itemId":1,"groupId":1,"quantity":1}],"ttl":"9s"}
{"shopId":2,"idempotencyKey":"b","lines":[{"itemId":1,"groupId":1,"quantity":1}]}
{"op":"reserve","shopId":2,"idempotencyKey":"a","lines":[{"itemId":1,"groupId":1,"quantity":1}],"ttl":"9s"}
{"op":"claim","shopId":2,"idempotencyKey":"a"}
{"op":"adjust","itemId":1,"groupId":1,"delta":-4,"adjustmentId":"w"}
{"op":"release","shopId":2,"idempotencyKey":"b"}
{"shopId":2,"idempotencyKey":"c","lines":[{"itemId":1,"groupId":1,"quantity":1}]}
`
	p := mustPlan(t, loadgen.PlanOptions{Shop: 1, TTL: time.Minute}, read(t, text))
	want := []string{"reserve a", "reserve b", "reserve a!", "claim a", "adjust w -4", "release b", "reserve c"}
	if got := told(p); !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
	if p.Carts[0].TTL != 9*time.Second || p.Carts[1].TTL != time.Minute || p.Carts[2].Fate != loadgen.FateExpire {
		t.Errorf("%+v", p.Carts)
	}
	wantStock := []reservation.Stocking{
		{Bucket: reservation.Bucket{Shop: 1, Item: 1, Group: 1}, Quantity: 4}, {Bucket: reservation.Bucket{Shop: 2, Item: 1, Group: 1}, Quantity: 3},
	}
	if diff := cmp.Diff(wantStock, p.Stock); diff != "" {
		t.Error(diff)
	}
	s := run(t, p, newModel(p.Stock), loadgen.Options{Clients: 4})
	if s.Reserve.Granted != 4 || s.Claim.Claimed != 1 || s.Release.Released != 1 || s.Adjust.Adjusted != 1 || s.Retries != 1 {
		t.Errorf("%+v", s)
	}
	wholeRun(t, p, s)

	// A file of reserves alone ends by the shares.
	var b strings.Builder
	for i := range 400 {
		fmt.Fprintf(&b, `{"idempotencyKey":"k%d","lines":[{"itemId":%d,"groupId":1,"quantity":1}]}`+"\n", i, i%7+1)
	}
	p = mustPlan(t, loadgen.PlanOptions{Shop: 1}, read(t, b.String()))
	s = run(t, p, newModel(p.Stock), loadgen.Options{Clients: 4})
	if s.Carts.Granted != 400 || s.Claim.Claimed < 280 || s.Release.Released < 20 {
		t.Errorf("%+v", s)
	}
	wholeRun(t, p, s)
}
