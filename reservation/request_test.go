package reservation_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/twinhold/twinhold/reservation"
)

func limits() reservation.Limits {
	return reservation.Limits{DefaultTTL: 10 * time.Minute, MaxTTL: time.Hour, MinTTL: 7*time.Minute + 5*time.Second}
}

func line(item, group, quantity int64) reservation.Line {
	return reservation.Line{Item: item, Group: group, Quantity: quantity}
}

func TestNewRequestNormalises(t *testing.T) {
	t.Parallel()
	in := []reservation.Line{line(2, 1, 1), line(1, 2, 5), line(1, 1, 3), line(2, 1, 4)}
	before := slices.Clone(in)
	req, err := reservation.NewRequest(7, "k", in, 0, limits())
	if err != nil {
		t.Fatal(err)
	}
	want := []reservation.Line{line(1, 1, 3), line(1, 2, 5), line(2, 1, 5)}
	if diff := cmp.Diff(want, req.Lines); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	if req.TTL != 10*time.Minute || req.Shop != 7 || req.Key != "k" {
		t.Errorf("request is %+v", req)
	}
	if diff := cmp.Diff(before, in); diff != "" {
		t.Errorf("the caller's own lines were changed:\n%s", diff)
	}
}

func TestNewRequestAccepts(t *testing.T) {
	t.Parallel()
	many := make([]reservation.Line, reservation.MaxLines)
	for i := range many {
		many[i] = line(int64(i+1), 1, 1)
	}
	for name, c := range map[string]struct {
		key   string
		lines []reservation.Line
		ttl   time.Duration
	}{
		"the largest quantity":     {"k", []reservation.Line{line(1, 1, math.MaxInt32)}, 0},
		"the largest sum":          {"k", []reservation.Line{line(1, 1, math.MaxInt32-1), line(1, 1, 1)}, 0},
		"1,000 lines":              {"k", many, 0},
		"1,000 lines of one item":  {"k", slices.Repeat([]reservation.Line{line(1, 1, 2)}, 1000), 0},
		"a key of 255 bytes":       {strings.Repeat("k", 255), []reservation.Line{line(1, 1, 1)}, 0},
		"a key that is no text":    {"\x00\xff", []reservation.Line{line(1, 1, 1)}, 0},
		"the largest ids":          {"k", []reservation.Line{line(math.MaxInt64, math.MaxInt64, 1)}, 0},
		"just above the least ttl": {"k", []reservation.Line{line(1, 1, 1)}, limits().MinTTL + 1},
		"the longest ttl":          {"k", []reservation.Line{line(1, 1, 1)}, time.Hour},
	} {
		if _, err := reservation.NewRequest(1, c.key, c.lines, c.ttl, limits()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNewRequestRefuses(t *testing.T) {
	t.Parallel()
	one := []reservation.Line{line(1, 1, 1)}
	for name, c := range map[string]struct {
		shop  int64
		key   string
		lines []reservation.Line
		ttl   time.Duration
		want  string // the beginning of the message
	}{
		"shop 0":            {0, "k", one, 0, "shopId 0 is not a shop id: use"},
		"negative shop":     {-1, "k", one, 0, "shopId -1"},
		"no key":            {1, "", one, 0, "idempotencyKey is empty: send"},
		"key of 256 bytes":  {1, strings.Repeat("é", 128), one, 0, "idempotencyKey has 256 bytes: send"},
		"empty cart":        {1, "k", nil, 0, "lines is empty: send"},
		"1,001 lines":       {1, "k", slices.Repeat(one, 1001), 0, "lines has 1001 lines: send"},
		"quantity 0":        {1, "k", []reservation.Line{line(1, 1, 1), line(1, 1, 0)}, 0, "lines[1].quantity 0 is out of range: use"},
		"negative quantity": {1, "k", []reservation.Line{line(1, 1, -3)}, 0, "lines[0].quantity -3"},
		"2^31":              {1, "k", []reservation.Line{line(1, 1, 1<<31)}, 0, "lines[0].quantity 2147483648"},
		"2^63-1":            {1, "k", []reservation.Line{line(1, 1, math.MaxInt64)}, 0, "lines[0].quantity"},
		"a sum of 2^31":     {1, "k", []reservation.Line{line(3, 2, 1<<30), line(3, 2, 1<<30)}, 0, "lines item 3 of group 2 sums to 2147483648: use"},
		"item 0":            {1, "k", []reservation.Line{line(0, 1, 1)}, 0, "lines[0].itemId 0"},
		"negative group":    {1, "k", []reservation.Line{line(1, -4, 1)}, 0, "lines[0].groupId -4"},
		"ttl at the least":  {1, "k", one, limits().MinTTL, "ttl 7m5s is too short: use more than 7m5s"},
		"negative ttl":      {1, "k", one, -time.Hour, "ttl -1h0m0s is too short"},
		"ttl too long":      {1, "k", one, time.Hour + 1, "ttl 1h0m0.000000001s is too long: use 1h0m0s"},
	} {
		req, err := reservation.NewRequest(c.shop, c.key, c.lines, c.ttl, limits())
		var inv *reservation.InvalidError
		if !errors.As(err, &inv) || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: got %v; want an InvalidError that begins %q", name, err, c.want)
		}
		if req.Lines != nil {
			t.Errorf("%s: a request came out", name)
		}
	}
}

func TestHashIsOfWhatWasAskedFor(t *testing.T) {
	t.Parallel()
	hash := func(shop int64, ttl time.Duration, lim reservation.Limits, l ...reservation.Line) reservation.Hash {
		t.Helper()
		req, err := reservation.NewRequest(shop, "k", l, ttl, lim)
		if err != nil {
			t.Fatal(err)
		}
		return req.Hash
	}
	first := hash(1, 0, limits(), line(1, 1, 2), line(2, 1, 3))
	if hash(1, 0, limits(), line(2, 1, 1), line(1, 1, 2), line(2, 1, 2)) != first {
		t.Error("the same cart, written otherwise, has another hash")
	}
	moved := limits()
	moved.DefaultTTL = 20 * time.Minute
	if hash(1, 0, moved, line(1, 1, 2), line(2, 1, 3)) != first {
		t.Error("a new default ttl makes another request of a retry (I9)")
	}
	for name, other := range map[string]reservation.Hash{
		"quantity":      hash(1, 0, limits(), line(1, 1, 3), line(2, 1, 3)),
		"item":          hash(1, 0, limits(), line(1, 1, 2), line(3, 1, 3)),
		"group":         hash(1, 0, limits(), line(1, 1, 2), line(2, 2, 3)),
		"a line less":   hash(1, 0, limits(), line(1, 1, 2)),
		"shop":          hash(2, 0, limits(), line(1, 1, 2), line(2, 1, 3)),
		"ttl":           hash(1, 15*time.Minute, limits(), line(1, 1, 2), line(2, 1, 3)),
		"ttl left out":  hash(1, 10*time.Minute, limits(), line(1, 1, 2), line(2, 1, 3)),
		"swapped pairs": hash(1, 0, limits(), line(1, 2, 1), line(2, 1, 3)),
	} {
		if other == first {
			t.Errorf("another %s has the same hash", name)
		}
	}
}

// TestHashStays holds the hash that stores have kept: a change would make a conflict of every retry in flight.
func TestHashStays(t *testing.T) {
	t.Parallel()
	req, err := reservation.NewRequest(42, "k", []reservation.Line{line(7, 1, 3), line(5, 2, 1)}, 10*time.Minute, limits())
	if err != nil {
		t.Fatal(err)
	}
	const want = "0f8d4f145310a3f77f3bd7b9f328f1019bee39f89e4d5998831b549072091e3a"
	if got := fmt.Sprintf("%x", req.Hash); got != want {
		t.Errorf("hash is %s; stored ones are %s", got, want)
	}
}

func TestNormalisingKeepsUnits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		lines := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) reservation.Line {
			return line(rapid.Int64Range(1, 5).Draw(rt, "item"), rapid.Int64Range(1, 3).Draw(rt, "group"), rapid.Int64Range(1, 1000).Draw(rt, "quantity"))
		}), 1, 50).Draw(rt, "lines")
		req, err := reservation.NewRequest(1, "k", lines, 0, limits())
		if err != nil {
			rt.Fatal(err)
		}
		if reservation.Units(req.Lines) != reservation.Units(lines) {
			rt.Fatalf("%d units became %d", reservation.Units(lines), reservation.Units(req.Lines))
		}
		shuffled := rapid.Permutation(lines).Draw(rt, "shuffled")
		again, err := reservation.NewRequest(1, "k", shuffled, 0, limits())
		if err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff(req, again); diff != "" {
			rt.Fatalf("the order of the lines matters:\n%s", diff)
		}
		once, err := reservation.NewRequest(1, "k", req.Lines, 0, limits())
		if err != nil || once.Hash != req.Hash {
			rt.Fatalf("normalising twice is not normalising once: %v", err)
		}
	})
}

func FuzzNewRequest(f *testing.F) {
	f.Add(int64(1), "k", int64(1), int64(1), int64(2), int64(1), int64(1), int64(3), int64(600e9))
	f.Add(int64(0), "", int64(-1), int64(0), int64(1<<31), int64(1), int64(1), int64(math.MaxInt64), int64(-1))
	f.Add(int64(1), strings.Repeat("k", 256), int64(1), int64(1), int64(1<<30), int64(1), int64(1), int64(1<<30), int64(0))
	f.Fuzz(func(t *testing.T, shop int64, key string, i1, g1, q1, i2, g2, q2, ttl int64) {
		req, err := reservation.NewRequest(shop, key, []reservation.Line{line(i1, g1, q1), line(i2, g2, q2)}, time.Duration(ttl), limits())
		if err != nil {
			var inv *reservation.InvalidError
			if !errors.As(err, &inv) || inv.Field == "" || reservation.CodeOf(err) != reservation.CodeInvalidArgument {
				t.Fatalf("refused with %v, which names no field", err)
			}
			return
		}
		if shop <= 0 || key == "" || len(key) > 255 || req.TTL <= limits().MinTTL-time.Microsecond || req.TTL > limits().MaxTTL {
			t.Fatalf("accepted: %+v", req)
		}
		for i, l := range req.Lines {
			if l.Quantity < 1 || l.Quantity > math.MaxInt32 || l.Bucket(shop).Validate() != nil {
				t.Fatalf("accepted the line %+v", l)
			}
			if i > 0 && req.Lines[i-1].Bucket(shop).Compare(l.Bucket(shop)) >= 0 {
				t.Fatalf("lines are not sorted and unique: %v", req.Lines)
			}
		}
	})
}

func FuzzParseID(f *testing.F) {
	f.Add("0190a0b0-0000-7000-8000-000000000000")
	f.Add("{0190a0b0-0000-7000-8000-00000000000}")
	f.Add("urn:uuid:0190a0b0-0000-7000-8000-000000000000")
	f.Fuzz(func(t *testing.T, s string) {
		id, err := reservation.ParseID(s)
		if err != nil {
			if reservation.CodeOf(err) != reservation.CodeInvalidArgument {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		if !strings.EqualFold(id.String(), s) {
			t.Fatalf("%q was read as %s", s, id)
		}
	})
}

func TestIDsSortByCreation(t *testing.T) {
	t.Parallel()
	var last string
	for range 1000 {
		id, err := reservation.NewID()
		if err != nil {
			t.Fatal(err)
		}
		if id.Version() != 7 || id.String() <= last {
			t.Fatalf("%s (version %d) came after %s", id, id.Version(), last)
		}
		last = id.String()
		if back, err := reservation.ParseID(last); err != nil || back != id {
			t.Fatalf("ParseID(%s) = %s, %v", last, back, err)
		}
	}
}

func TestParseIDRefuses(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "1", "0190a0b000007000800000000000000", "urn:uuid:0190a0b0-0000-7000-8000-000000000000", "0190a0b0-0000-7000-8000-00000000000g"} {
		_, err := reservation.ParseID(s)
		if err == nil || !strings.Contains(err.Error(), "use the 36-character id") {
			t.Errorf("ParseID(%q): %v", s, err)
		}
	}
}

func TestAdjustmentAndStockingValidate(t *testing.T) {
	t.Parallel()
	b := reservation.Bucket{Shop: 1, Item: 2, Group: 3}
	if err := (reservation.Adjustment{ID: "a", Bucket: b, Delta: -reservation.MaxOnHand}).Validate(); err != nil {
		t.Error(err)
	}
	if err := (reservation.Stocking{Bucket: b}).Validate(); err != nil {
		t.Error(err)
	}
	for want, err := range map[string]error{
		"delta 0 is out":           reservation.Adjustment{ID: "a", Bucket: b}.Validate(),
		"delta 1125899906842625":   reservation.Adjustment{ID: "a", Bucket: b, Delta: reservation.MaxOnHand + 1}.Validate(),
		"delta -1125899906842625":  reservation.Adjustment{ID: "a", Bucket: b, Delta: -reservation.MaxOnHand - 1}.Validate(),
		"adjustmentId is empty":    reservation.Adjustment{Bucket: b, Delta: 1}.Validate(),
		"adjustmentId has 256":     reservation.Adjustment{ID: strings.Repeat("a", 256), Bucket: b, Delta: 1}.Validate(),
		"shopId 0":                 reservation.Adjustment{ID: "a", Delta: 1}.Validate(),
		"quantity -1 is out":       reservation.Stocking{Bucket: b, Quantity: -1}.Validate(),
		"quantity 112589990684262": reservation.Stocking{Bucket: b, Quantity: reservation.MaxOnHand + 1}.Validate(),
		"groupId 0":                reservation.Stocking{Bucket: reservation.Bucket{Shop: 1, Item: 1}}.Validate(),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), want) || reservation.CodeOf(err) != reservation.CodeInvalidArgument {
			t.Errorf("got %v; want %q", err, want)
		}
	}
}

func ExampleNewRequest() {
	limits := reservation.Limits{DefaultTTL: 10 * time.Minute, MaxTTL: time.Hour, MinTTL: 7 * time.Minute}
	cart := []reservation.Line{
		{Item: 1002, Group: 1, Quantity: 1},
		{Item: 1001, Group: 1, Quantity: 2},
		{Item: 1002, Group: 1, Quantity: 3},
	}
	req, err := reservation.NewRequest(1, "order-4711", cart, 0, limits)
	fmt.Println(req.Lines, req.TTL, err)

	_, err = reservation.NewRequest(1, "order-4711", cart, time.Minute, limits)
	fmt.Println(err)
	// Output:
	// [{1001 1 2} {1002 1 4}] 10m0s <nil>
	// ttl 1m0s is too short: use more than 7m0s (payment timeout + callback window + clock skew)
}
