package loadgen

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// step is one thing that was recorded, before it is copied. Exactly one of its kinds is filled in.
type step struct {
	at   time.Time
	shop int64
	name string // the invoice, or the key of a request; adjustments: their id
	file string
	line int

	cart []reservation.Line // a reserve of these
	ttl  time.Duration
	// exact: the file itself says how the cart ends and what is retried.
	exact bool

	back   []reservation.Line // a cancellation that gives these back, one line a bucket
	adjust *reservation.Adjustment

	ends  reservation.Op // a claim or release of the cart of this name
	again bool           // the reserve of this name, once more
}

// read turns a recording into steps.
func (b *builder) read(rec Recording) error {
	for _, inv := range rec.Invoices {
		if err := b.readInvoice(rec.Name, inv); err != nil {
			return err
		}
	}
	return b.readRequests(rec)
}

// readInvoice sorts an invoice's goods into a cart, write-offs, or what a cancellation gives back.
func (b *builder) readInvoice(file string, inv Invoice) error {
	if len(inv.Goods) == 0 {
		b.plan.Recorded.Empty++
		return nil
	}
	var bought, given []Good
	for _, g := range inv.Goods {
		if g.Quantity > 0 {
			bought = append(bought, g)
		} else {
			g.Quantity = -g.Quantity
			given = append(given, g)
		}
	}
	base := step{at: inv.At, shop: b.opts.Shop, name: inv.Number, file: file, line: inv.Line}
	if err := b.addCart(base, bought); err != nil {
		return err
	}
	back, err := b.summed(file, given)
	if err != nil {
		return err
	}
	if inv.Cancellation() {
		b.plan.Recorded.Cancellations++
		base.back = back
		b.steps = append(b.steps, base)
		return nil
	}
	for _, l := range back {
		s := base
		s.adjust = adjustmentOf(s, l, -l.Quantity)
		s.name = s.adjust.ID
		b.steps = append(b.steps, s)
	}
	return nil
}

// adjustmentOf names an adjustment after its invoice and bucket.
func adjustmentOf(s step, l reservation.Line, delta int64) *reservation.Adjustment {
	return &reservation.Adjustment{ID: fmt.Sprintf("%s/%d/%d", s.name, l.Item, l.Group), Bucket: l.Bucket(s.shop), Delta: delta}
}

// addCart adds a cart as its lines stand in the invoice, a code twice included. Only a cart that has more lines
// than a request may have is summed first, and cut into several if that is not enough.
func (b *builder) addCart(s step, goods []Good) error {
	if len(goods) == 0 {
		return nil
	}
	lines, err := b.summed(s.file, goods)
	if err != nil {
		return err
	}
	if len(goods) <= reservation.MaxLines {
		lines = lines[:0:0]
		for _, g := range goods {
			lines = append(lines, b.line(g))
		}
	}
	part := 0
	for chunk := range slices.Chunk(lines, reservation.MaxLines) {
		c := s
		c.cart, c.ttl = chunk, b.opts.TTL
		if part++; part > 1 {
			c.name += "/" + strconv.Itoa(part)
			b.plan.Recorded.Split++
		}
		b.addReserve(c)
	}
	return nil
}

func (b *builder) addReserve(s step) {
	b.plan.Recorded.Carts++
	b.plan.Recorded.Lines += len(s.cart)
	b.steps = append(b.steps, s)
}

func (b *builder) line(g Good) reservation.Line {
	return reservation.Line{Item: b.ids.item[g.Code], Group: b.ids.group[g.Country], Quantity: g.Quantity}
}

// summed gives one line a bucket, in order of their first.
func (b *builder) summed(file string, goods []Good) ([]reservation.Line, error) {
	var out []reservation.Line
	at := make(map[[2]int64]int, len(goods))
	for _, g := range goods {
		l := b.line(g)
		i, seen := at[[2]int64{l.Item, l.Group}]
		if !seen {
			at[[2]int64{l.Item, l.Group}] = len(out)
			out = append(out, l)
			continue
		}
		out[i].Quantity += l.Quantity
		if out[i].Quantity > reservation.MaxQuantity {
			return nil, &ParseError{File: file, Line: g.Line, Reason: fmt.Sprintf(
				"with this line the invoice's quantity of %s in %s passes %d, the most of one reservation", g.Code, g.Country, reservation.MaxQuantity)}
		}
	}
	return out, nil
}

// readRequests gives requests times of their own, a second apart, so that their order is that of the file.
func (b *builder) readRequests(rec Recording) error {
	exact := slices.ContainsFunc(rec.Requests, func(q Request) bool {
		return q.Op == reservation.OpClaim || q.Op == reservation.OpRelease
	})
	reserves := make(map[string]Request)
	adjusts := make(map[string]int)
	for i, q := range rec.Requests {
		if q.Shop == 0 {
			q.Shop = b.opts.Shop
		}
		s := step{
			at: time.Unix(int64(i), 0).UTC(), shop: q.Shop, name: q.Key, file: rec.Name, line: q.Line,
			exact: exact,
		}
		wrong := func(format string, args ...any) error {
			return &ParseError{File: rec.Name, Line: q.Line, Reason: fmt.Sprintf(format, args...)}
		}
		id := strconv.FormatInt(q.Shop, 10) + ":" + q.Key
		first, seen := reserves[id]
		switch {
		case q.Op == reservation.OpAdjust:
			adjID := strconv.FormatInt(q.Shop, 10) + ":" + q.Adjust.ID
			if line, twice := adjusts[adjID]; twice {
				return wrong("the adjustment %q was there before, on line %d: give each its own id", q.Adjust.ID, line)
			}
			adjusts[adjID] = q.Line
			a := q.Adjust
			a.Bucket.Shop = q.Shop
			s.adjust, s.name = &a, a.ID
		case q.Op == reservation.OpReserve && !seen:
			reserves[id] = q
			s.cart, s.ttl = q.Lines, q.TTL
			if s.ttl == 0 {
				s.ttl = b.opts.TTL
			}
			b.addReserve(s)
			continue
		case q.Op == reservation.OpReserve:
			if !slices.Equal(first.Lines, q.Lines) || first.TTL != q.TTL {
				return wrong("the key %q was used for another request on line %d: use a new key", q.Key, first.Line)
			}
			s.again = true
		case !seen:
			return wrong("no line above reserves with the key %q", q.Key)
		default:
			s.ends = q.Op
		}
		b.steps = append(b.steps, s)
	}
	return nil
}
