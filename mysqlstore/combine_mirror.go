package mysqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/hex"
	"slices"
	"strconv"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// attempt is one try of a mirror operation: in a lane if it is a plain one, or by itself. Ends of holds meet in the lane of
// their first bucket, new reservations in that of the store.
func (m *mirroring) attempt(ctx context.Context, locked bool) error {
	kind := m.lane()
	rec := m.op.Record
	if locked || kind == 0 {
		return m.try(ctx, locked)
	}
	key := laneKey{kind, rec.Lines[0].Bucket(rec.Shop)}
	mem := &member{ctx: ctx, stamp: m.st, id: rec.ID, shop: rec.Shop, lines: len(rec.Lines), leaving: &m.op}
	if kind == arriveLane {
		rec.Marked = false
		key.bucket = reservation.Bucket{} // of all buckets: they wait for no row that anybody holds
		mem = (&arrival{rec: rec}).member(ctx, m.st)
	}
	mem.gathers = true
	m.told.turn.end()
	if m.told = m.s.join(key, m.op.Op, mem); m.told.answered() {
		m.res = m.told.judged
		return m.told.err
	}
	if m.told.prior != nil && m.told.judged.Stored {
		m.stored = &m.told.judged
	}
	return m.try(ctx, false)
}

// inTurn waits until the reserves that came before have been stored, those that wait for company too: what the truth
// refused is judged by what it had granted by then.
func (m *mirroring) inTurn(ctx context.Context) word {
	if m.s.opts.NoLanes || m.op.Op != reservation.OpReserve {
		return word{}
	}
	rec := m.op.Record
	return m.s.join(laneKey{kind: arriveLane}, m.op.Op, &member{ctx: ctx, stamp: m.st, id: rec.ID, shop: rec.Shop, apart: true})
}

// lane gives the kind of lane that a plain operation goes to: a reserve that stores a new hold or a new rejection, or the
// end of a hold; zero for any other, which is run alone.
func (m *mirroring) lane() laneKind {
	op := m.op
	rec := op.Record
	if m.s.opts.NoLanes || m.told.prior != nil || op.Adopt || op.Expect != nil || len(rec.Lines) > laneLines {
		return 0
	}
	is := func(o reservation.Op, d reservation.Decision, s reservation.State) bool {
		return op.Op == o && op.Decision == d && rec.State == s
	}
	switch {
	case op.Op == reservation.OpReserve && (op.Replayed || !untouched(rec)):
		return 0
	case is(reservation.OpReserve, reservation.Granted, reservation.Held) && !m.ledger && !m.s.large(rec.Lines),
		is(reservation.OpReserve, reservation.RejectedShort, reservation.Rejected):
		return arriveLane
	case is(reservation.OpRelease, reservation.ReleasedOK, reservation.Released),
		is(reservation.OpExpire, reservation.ExpiredOK, reservation.Expired):
		return leaveLane
	default:
		return 0
	}
}

// untouched tells whether no step of a reservation has followed its reserve.
func untouched(rec reservation.Record) bool {
	return !rec.Late && rec.PinnedAt.IsZero() && rec.ReleasedAt.IsZero() && rec.ExpiredAt.IsZero() && rec.ClaimedAt.IsZero()
}

// leavings is a shared transaction of mirrored releases and expiries. Each ends a hold that is here on the truth's terms;
// whatever else there is to do is run alone.
type leavings struct {
	s       *Store
	members []*member

	rows  map[reservation.ID]*row
	ls    ledgers
	words []word // by member

	moves map[reservation.Bucket]int64
	ends  []byte // as qRecordsLeave reads them
	freed freed
}

func (s *Store) shareLeavings(ctx context.Context, batch []*member) {
	b := &leavings{s: s, members: batch}
	w := work{path: leaveLane.String() + "_shared", op: reservation.OpRelease, stamp: batch[0].stamp}
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

func (b *leavings) opening() []statement {
	b.rows = make(map[reservation.ID]*row, len(b.members))
	var buckets []reservation.Bucket
	ids := make([]reservation.ID, len(b.members))
	for n, m := range b.members {
		buckets = append(buckets, bucketsOf(m.shop, m.leaving.Record.Lines)...)
		ids[n] = m.id
	}
	b.ls = newLedgers(buckets)
	return lockEnding(b.ls, ids, b.rows)
}

// lockEnding locks ledger rows, then the rows of reservations in order of id.
func lockEnding(ls ledgers, ids []reservation.ID, found map[reservation.ID]*row) []statement {
	slices.SortFunc(ids, func(x, y reservation.ID) int { return bytes.Compare(x[:], y[:]) })
	return []statement{
		ls.lock(),
		{query: qRecordsLock, args: []any{jsonHex(ids)}, scan: func(rows *sql.Rows) error {
			r, err := scanRow(rows)
			if err == nil {
				found[r.ID] = r
			}
			return err
		}},
	}
}

func (b *leavings) decide(t *tx) ([]statement, error) {
	b.words = make([]word, len(b.members))
	b.moves, b.ends, b.freed = map[reservation.Bucket]int64{}, nil, freed{}
	for n, m := range b.members {
		b.words[n] = b.decideOne(m, b.rows[m.id])
	}
	if len(b.freed.ids) == 0 {
		return nil, nil
	}
	moves := make([]move, 0, len(b.moves))
	for bucket, units := range b.moves {
		moves = append(moves, move{bucket: bucket, unpooled: units})
	}
	return append([]statement{
		t.moves(moves),
		change("record", len(b.freed.ids), "reservations", qRecordsLeave, "["+string(b.ends)+"]"),
	}, b.freed.deletes()...), nil
}

// decideOne says what one member is told, if the transaction is committed.
func (b *leavings) decideOne(m *member, cur *row) word {
	op := *m.leaving
	decides := m.stamp.Stage.Truth() == reservation.MySQL
	switch {
	case cur == nil, cur.State != reservation.Held, cur.Shop != m.shop, cur.Marked:
		return word{why: "case"}
	case !decides && !sameTerms(cur.Record, op.Record):
		return word{why: "case"} // it takes the truth's over
	}
	for _, bucket := range cur.buckets() {
		if l := b.ls.find(bucket); l == nil || !l.known {
			return word{why: "case"}
		}
	}
	j := judgeExisting(op, cur)
	mergeSteps(cur, op.Record)
	cur.State = op.Record.State
	if cur.State == reservation.Expired && cur.ExpiredAt.IsZero() {
		cur.ExpiredAt = cur.ExpiresAt
	}
	for _, l := range cur.Lines {
		b.moves[l.Bucket(cur.Shop)] += l.Quantity
	}
	b.end(cur)
	rec := cur.Record
	j.Stored, j.State, j.Record = true, rec.State, &rec
	return word{judged: j}
}

// end writes a reservation's last state, with the steps that are known of it.
func (b *leavings) end(cur *row) {
	if len(b.freed.ids) > 0 {
		b.ends = append(b.ends, ',')
	}
	b.freed.add(cur.Record)
	b.ends = append(b.ends, '[', '"')
	b.ends = hex.AppendEncode(b.ends, cur.ID[:])
	b.ends = append(b.ends, '"', ',')
	b.ends = strconv.AppendQuote(b.ends, cur.State.String())
	if b.ends = append(b.ends, ',', '0'); cur.Late {
		b.ends[len(b.ends)-1] = '1'
	}
	for _, at := range []time.Time{cur.PinnedAt, cur.ReleasedAt, cur.ExpiredAt, cur.ClaimedAt} {
		if b.ends = append(b.ends, ','); at.IsZero() {
			b.ends = append(b.ends, "null"...)
			continue
		}
		b.ends = appendTime(b.ends, at)
	}
	b.ends = append(b.ends, ']')
}

// appendTime writes an instant as JSON_TABLE reads it.
func appendTime(b []byte, at time.Time) []byte {
	b = append(b, '"')
	b = at.UTC().AppendFormat(b, "2006-01-02 15:04:05.000000")
	return append(b, '"')
}
