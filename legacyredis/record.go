package legacyredis

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// stored is a reservation as its hash holds it: the record, and what only this store keeps beside it.
type stored struct {
	reservation.Record
	refuse, forced bool
	// unjudged: a pin whose lateness the ledger's transaction judges.
	unjudged bool
	seen     []int64 // what was available at the reserve, one figure a line; gone once the hold has ended
}

// decodeRecord reads the fields of {pod}:res:<id>.
func (k keys) decodeRecord(id reservation.ID, m map[string]string) (stored, error) {
	r := stored{refuse: m["refuse"] == "1", forced: m["forced"] == "1", unjudged: m["judged"] == "0"}
	r.ID, r.Key, r.Late = id, m["key"], m["late"] == "1"
	d := decoder{m: m}
	r.Shop = d.number("shop")
	r.Hash = d.hash("hash")
	r.State = d.state("state")
	r.Outcome = d.outcome("outcome")
	r.DecidedBy = d.truth("decided_by")
	r.Epoch = uint64(d.number("epoch"))
	r.CreatedAt, r.ExpiresAt, r.PurgeAt = d.time("created_at"), d.time("expires_at"), d.time("purge_at")
	r.PinnedAt, r.ReleasedAt = d.optional("pinned_at"), d.optional("released_at")
	r.ExpiredAt, r.ClaimedAt = d.optional("expired_at"), d.optional("claimed_at")
	for _, l := range d.tuples("lines", 3) {
		r.Lines = append(r.Lines, reservation.Line{Item: l[0], Group: l[1], Quantity: l[2]})
	}
	r.Shortages = d.shortages("shortages")
	for _, l := range d.tuples("seen", 1) {
		r.seen = append(r.seen, l[0])
	}
	if d.err != nil {
		return r, &reservation.CorruptError{Store: reservation.Redis, What: k.reservation(id.String()) + " " + d.err.Error()}
	}
	return r, nil
}

// decoder reads fields and keeps the first error.
type decoder struct {
	m   map[string]string
	err error
}

func (d *decoder) bad(field string) {
	if d.err == nil {
		d.err = fmt.Errorf("holds %q in field %s", d.m[field], field)
	}
}

func (d *decoder) number(field string) int64 {
	n, err := strconv.ParseInt(d.m[field], 10, 64)
	if err != nil {
		d.bad(field)
	}
	return n
}

func (d *decoder) time(field string) time.Time { return time.UnixMicro(d.number(field)).UTC() }

func (d *decoder) optional(field string) time.Time {
	if d.m[field] == "" {
		return time.Time{}
	}
	return d.time(field)
}

func (d *decoder) hash(field string) reservation.Hash {
	var h reservation.Hash
	b, err := hex.DecodeString(d.m[field])
	if err != nil || len(b) != len(h) {
		d.bad(field)
		return h
	}
	copy(h[:], b)
	return h
}

func (d *decoder) state(field string) reservation.State {
	st, err := reservation.ParseState(d.m[field])
	if err != nil {
		d.bad(field)
	}
	return st
}

func (d *decoder) outcome(field string) reservation.Decision {
	for _, o := range []reservation.Decision{reservation.Granted, reservation.RejectedShort} {
		if d.m[field] == o.String() {
			return o
		}
	}
	d.bad(field)
	return 0
}

func (d *decoder) truth(field string) reservation.Truth {
	for _, t := range []reservation.Truth{reservation.Redis, reservation.MySQL} {
		if d.m[field] == t.String() {
			return t
		}
	}
	d.bad(field)
	return 0
}

func (d *decoder) shortages(field string) []reservation.Shortage {
	var out []reservation.Shortage
	for _, l := range d.tuples(field, 4) {
		out = append(out, reservation.Shortage{Item: l[0], Group: l[1], Requested: l[2], Available: l[3]})
	}
	return out
}

// tuples reads a packed field: numbers joined by colons, tuples joined by commas.
func (d *decoder) tuples(field string, n int) [][]int64 {
	packed := d.m[field]
	if packed == "" {
		return nil
	}
	parts := strings.Split(packed, ",")
	out := make([][]int64, 0, len(parts))
	for _, p := range parts {
		nums := strings.Split(p, ":")
		if len(nums) != n {
			d.bad(field)
			return nil
		}
		t := make([]int64, n)
		for i, s := range nums {
			v, err := strconv.ParseInt(s, 10, 64)
			if err != nil {
				d.bad(field)
				return nil
			}
			t[i] = v
		}
		out = append(out, t)
	}
	return out
}

// encodeRecord gives the fields of a record that another store knows, without those of a pin of this one.
func encodeRecord(r reservation.Record) []any {
	fields := []any{
		"shop", strconv.FormatInt(r.Shop, 10), "key", r.Key, "hash", hex.EncodeToString(r.Hash[:]),
		"lines", packLines(r.Lines), "outcome", r.Outcome.String(), "state", r.State.String(),
		"shortages", packShortages(r.Shortages), "decided_by", r.DecidedBy.String(),
		"epoch", strconv.FormatUint(r.Epoch, 10), "created_at", stamp(r.CreatedAt),
		"expires_at", stamp(r.ExpiresAt), "purge_at", stamp(r.PurgeAt),
	}
	for field, at := range map[string]time.Time{
		"pinned_at": r.PinnedAt, "released_at": r.ReleasedAt, "expired_at": r.ExpiredAt, "claimed_at": r.ClaimedAt,
	} {
		if !at.IsZero() {
			fields = append(fields, field, stamp(at))
		}
	}
	if r.Late {
		fields = append(fields, "late", "1")
	}
	return fields
}

func packShortages(short []reservation.Shortage) string {
	parts := make([]string, 0, len(short))
	for _, s := range short {
		parts = append(parts, fmt.Sprintf("%d:%d:%d:%d", s.Item, s.Group, s.Requested, s.Available))
	}
	return strings.Join(parts, ",")
}

func stamp(t time.Time) string { return strconv.FormatInt(t.UnixMicro(), 10) }

func packLines(lines []reservation.Line) string {
	b := make([]byte, 0, 16*len(lines))
	for i, l := range lines {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, l.Item, 10)
		b = append(b, ':')
		b = strconv.AppendInt(b, l.Group, 10)
		b = append(b, ':')
		b = strconv.AppendInt(b, l.Quantity, 10)
	}
	return string(b)
}

func packFigures(figs []reservation.Figures) string {
	parts := make([]string, 0, len(figs))
	for _, f := range figs {
		parts = append(parts, fmt.Sprintf("%s:%d:%d", f.Bucket, f.OnHand, f.Version))
	}
	return strings.Join(parts, ",")
}

func packChanges(changes []reservation.Change) string {
	parts := make([]string, 0, len(changes))
	for _, c := range changes {
		parts = append(parts, fmt.Sprintf("%s:%d:%d", c.Bucket, c.Delta, c.Version))
	}
	return strings.Join(parts, ",")
}

func flag(on bool) string {
	if on {
		return "1"
	}
	return "0"
}
