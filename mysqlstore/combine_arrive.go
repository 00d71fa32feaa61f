package mysqlstore

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// arrival is a reservation that Redis has made: a mirrored reserve, or one whose grant in handover needs MySQL's word.
type arrival struct {
	rec reservation.Record // as it is to be stored
	// agree: a grant in handover; levels, if not nil, say that it is sold out.
	agree  bool
	levels []level
}

// holds tells whether the reservation wants units.
func (a *arrival) holds() bool { return a.rec.State == reservation.Held && a.levels == nil }

// member is the arrival as a caller in its lane.
func (a *arrival) member(ctx context.Context, st reservation.Stamp) *member {
	m := &member{ctx: ctx, stamp: st, id: a.rec.ID, shop: a.rec.Shop, key: a.rec.Key, lines: len(a.rec.Lines), arrival: a}
	if a.holds() {
		m.units = reservation.Units(a.rec.Lines)
	}
	return m
}

// arrivals is a shared transaction of reservations that Redis has made. Each is stored if neither its id nor its key is
// known here, and if it holds, then only with free units: whatever else there is to decide is run alone. They are judged
// one after the other, as if each had been stored before the next one.
type arrivals struct {
	s       *Store
	members []*member
	wants   []want               // by bucket, summed over the members
	asked   []reservation.Bucket // of which a judgement wants the figures

	known   map[reservation.ID]bool
	keys    map[laneKeyOf]bool
	free    freeUnits
	figures map[reservation.Bucket]*level
	words   []word // by member

	took   [][]int64
	recs   []reservation.Record
	judged [][]byte
}

func (s *Store) shareArrivals(ctx context.Context, kind laneKind, batch []*member) {
	b := &arrivals{s: s, members: batch}
	b.prepare()
	w := work{path: kind.String() + "_shared", op: reservation.OpReserve, stamp: batch[0].stamp}
	for _, m := range batch {
		w.lines += m.lines
	}
	if err := s.together(ctx, w, b); err != nil {
		s.tellAll(batch, err, time.Time{}, b.words)
		return
	}
	for n, m := range batch {
		s.tell(m, b.words[n])
	}
}

func (b *arrivals) prepare() {
	sums := map[reservation.Bucket]int64{}
	for _, m := range b.members {
		for _, l := range m.arrival.rec.Lines {
			switch bucket := l.Bucket(m.shop); {
			case m.arrival.holds():
				sums[bucket] += l.Quantity
			case !m.arrival.agree:
				b.asked = append(b.asked, bucket)
			}
		}
	}
	b.wants = sortedWants(sums)
	slices.SortFunc(b.asked, reservation.Bucket.Compare)
	b.asked = slices.Compact(b.asked)
}

func (b *arrivals) opening() []statement {
	b.known, b.keys, b.free = map[reservation.ID]bool{}, map[laneKeyOf]bool{}, freeUnits{}
	seen := func(rows *sql.Rows) error {
		r, err := scanRow(rows)
		if err == nil {
			b.known[r.ID] = true
			b.keys[laneKeyOf{r.Shop, r.Key}] = true
		}
		return err
	}
	sts := []statement{
		recordsOf(b.members, seen),
		{query: qRecordsByKey, args: []any{jsonKeys(b.members)}, scan: seen},
	}
	sts = append(sts, b.free.lock(b.wants)...)
	if len(b.asked) == 0 {
		return sts
	}
	b.figures = map[reservation.Bucket]*level{}
	return append(sts, statement{query: qLedgerCount, args: []any{jsonBucketList(b.asked)}, scan: func(rows *sql.Rows) error {
		l, err := scanLevel(rows)
		b.figures[l.bucket] = &l
		return err
	}})
}

func (b *arrivals) decide(t *tx) ([]statement, error) {
	b.words = make([]word, len(b.members))
	b.took, b.recs, b.judged = nil, nil, nil
	for n, m := range b.members {
		w, err := b.decideOne(t, m)
		if err != nil {
			return nil, err
		}
		b.words[n] = w
	}
	t.takes(b.took)
	sts := unitDeletes(t, b.took)
	return append(sts, insertRecords(b.recs, b.judged, nil, t)...), nil
}

// decideOne says what one member is told, if the transaction is committed.
func (b *arrivals) decideOne(t *tx, m *member) (word, error) {
	a := m.arrival
	rec := a.rec
	switch {
	case b.known[rec.ID], m.key != "" && b.keys[laneKeyOf{m.shop, m.key}]:
		return word{why: "case"}, nil
	case !rec.PurgeAt.After(t.now), rec.State == reservation.Held && !rec.ExpiresAt.After(t.now):
		return word{why: "case"}, nil
	case a.levels != nil && t.fence.Whole != m.stamp.Epoch:
		return word{err: errNotWhole}, nil
	case a.holds() && !b.free.grant(m.shop, rec.Lines, &b.took):
		return word{err: errShort}, nil
	}
	if a.holds() {
		for _, l := range rec.Lines {
			if f := b.figures[l.Bucket(m.shop)]; f != nil {
				f.pool -= l.Quantity
			}
		}
	}
	var v *verdict
	var err error
	j := reservation.Judgement{Decision: reservation.Granted}
	switch {
	case a.levels != nil:
		rec, j = soldOutHere(rec, a.levels)
	case rec.State == reservation.Held:
		v = &verdict{Decision: reservation.Granted}
	default:
		if v, err = judgeRejected(rec, nil, b.levels); err != nil {
			return word{}, err
		}
		j = v.judgement()
	}
	packed, err := v.pack()
	if err != nil {
		return word{}, err
	}
	b.recs, b.judged = append(b.recs, rec), append(b.judged, packed)
	j.Stored, j.State, j.Record = true, rec.State, &rec
	return word{judged: j}, nil
}

// levels gives the figures that were read at the opening, less what was taken since.
func (b *arrivals) levels(buckets []reservation.Bucket) ([]level, error) {
	out := make([]level, len(buckets))
	for n, bucket := range buckets {
		l := b.figures[bucket]
		if l == nil {
			return nil, corrupt("bucket %s was not counted", bucket)
		}
		out[n] = *l
	}
	return out, nil
}
