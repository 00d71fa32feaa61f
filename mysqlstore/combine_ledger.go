package mysqlstore

import (
	"context"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// ending is a claim or a release of a reservation whose buckets are known.
type ending struct {
	op   reservation.Op
	seen *row
	mark bool             // the outcome is answered without Redis
	pin  *reservation.Pin // not nil: the MySQL half of a claim that Redis has pinned
}

// endInLane carries a claim or a release out together with others of its first bucket, or says that it is to be run
// alone, with the lane's turn if it has one.
func (s *Store) endInLane(ctx context.Context, st reservation.Stamp, op reservation.Op, seen *row, mark bool) word {
	if s.opts.NoLanes || len(seen.Lines) == 0 || len(seen.Lines) > laneLines {
		return word{why: "case"}
	}
	ctx, cancel := s.withBudget(ctx)
	defer cancel()
	return s.join(laneKey{ledgerLane, seen.Lines[0].Bucket(seen.Shop)}, op, &member{
		ctx: ctx, stamp: st, id: seen.ID, shop: seen.Shop, lines: len(seen.Lines),
		ending: &ending{op: op, seen: seen, mark: mark},
	})
}

// endings is a shared transaction of claims and releases. What needs more than the ledger's rows and the
// reservation's own (a claim of what holds nothing, a refund, a late claim under a policy that refuses) is run alone.
type endings struct {
	s       *Store
	members []*member

	rows  map[reservation.ID]*row
	ls    ledgers
	words []word // by member

	at      time.Time
	moves   map[reservation.Bucket]*move
	ends    []byte // as qRecordsEnd reads them
	ended   int
	plain   [2][]any // the ids of others, that are claimed, or released, and nothing else
	freed   freed
	entries []any
	marked  []reservation.ID
	late    []reservation.Record
}

func (s *Store) shareEndings(ctx context.Context, batch []*member) {
	if p := s.plainClaims(batch); p != nil {
		done, err := p.run(ctx, work{path: "claim_shared", op: reservation.OpClaim, stamp: batch[0].stamp})
		switch {
		case err != nil:
			s.tellAll(batch, err, p.at, p.words())
			return
		case done:
			s.tellTogether(batch, p.words())
			return
		}
		s.metrics.retries.WithLabelValues("not_plain").Inc()
	}
	b := &endings{s: s, members: batch}
	w := work{path: "ledger_shared", op: reservation.OpClaim, stamp: batch[0].stamp}
	for _, m := range batch {
		w.lines += m.lines
	}
	if err := s.together(ctx, w, b); err != nil {
		s.tellAll(batch, err, b.at, b.words)
		return
	}
	for _, r := range b.late {
		s.toldLate(ctx, r, r.State)
	}
	s.tellTogether(batch, b.words)
}

func (b *endings) opening() []statement {
	b.rows = make(map[reservation.ID]*row, len(b.members))
	var buckets []reservation.Bucket
	ids := make([]reservation.ID, len(b.members))
	for n, m := range b.members {
		buckets = append(buckets, m.ending.seen.buckets()...)
		ids[n] = m.id
	}
	b.ls = newLedgers(buckets)
	return lockEnding(b.ls, ids, b.rows)
}

func (b *endings) decide(t *tx) ([]statement, error) {
	b.words = make([]word, len(b.members))
	b.moves, b.ends, b.ended, b.plain = map[reservation.Bucket]*move{}, nil, 0, [2][]any{}
	b.freed, b.entries, b.marked, b.late = freed{}, nil, nil, nil
	b.at = t.now
	for _, r := range b.rows {
		b.at = later(b.at, r.at)
	}
	for n, m := range b.members {
		b.words[n] = b.decideOne(m, b.rows[m.id])
	}
	return b.writes(t), nil
}

// decideOne says what one member is told, if the transaction is committed.
func (b *endings) decideOne(m *member, cur *row) word {
	if cur == nil || cur.purged() {
		if m.ending.pin != nil {
			return word{why: "case"} // the pin brings all that there is to know
		}
		return word{err: errGone}
	}
	for _, bucket := range cur.buckets() {
		if l := b.ls.find(bucket); l == nil || !l.known {
			return word{why: "case"}
		}
	}
	fresh := m.ending.mark && !cur.Marked
	switch {
	case m.ending.pin != nil:
		return b.deduct(m.stamp, cur, m.ending.pin.Record)
	case m.ending.op == reservation.OpClaim:
		return b.claim(cur, fresh)
	default:
		return b.release(cur, fresh)
	}
}

func (b *endings) claim(cur *row, fresh bool) word {
	switch cur.State {
	case reservation.Claimed, reservation.Refused:
		if fresh {
			return word{why: "case"}
		}
		return word{claim: reservation.ClaimResult{Record: cur.Record, Late: cur.Late, Replayed: true}}
	case reservation.Held:
	case reservation.Expired:
		return word{why: "case"}
	default:
		return word{err: &reservation.ConflictError{Op: reservation.OpClaim, State: cur.State}}
	}
	changes := b.take(cur, !cur.at.Before(cur.ExpiresAt), fresh)
	if changes == nil {
		return word{why: "case"}
	}
	return word{claim: reservation.ClaimResult{Record: cur.Record, Late: cur.Late}}
}

// take deducts a hold; nil if the policy or the ledger leave more to decide.
func (b *endings) take(cur *row, late, fresh bool) []reservation.Change {
	if late && b.s.opts.LatePolicy == reservation.RefuseLate || !covered(cur.Lines, cur.Shop, b.ls) {
		return nil
	}
	changes := claimChanges(b.ls, cur.Record)
	for _, c := range changes {
		b.entries = append(b.entries, c.Bucket.Shop, c.Bucket.Item, c.Bucket.Group, cur.ID[:], c.Delta, c.Version, b.at)
		l := b.ls.find(c.Bucket)
		l.onHand, l.version = l.onHand+c.Delta, c.Version
		mv := b.move(c.Bucket)
		mv.onHand, mv.version = mv.onHand+c.Delta, mv.version+1
	}
	cur.Late = late
	cur.State, cur.ClaimedAt = reservation.Claimed, b.at
	b.freed.add(cur.Record)
	b.end(cur, fresh, 1)
	if late {
		b.late = append(b.late, cur.Record)
	}
	return changes
}

func (b *endings) release(cur *row, fresh bool) word {
	held := cur.State == reservation.Held
	switch cur.State {
	case reservation.Released:
		if fresh {
			return word{why: "case"}
		}
		return word{release: reservation.ReleaseResult{Record: cur.Record, Replayed: true, WasExpired: !cur.ExpiredAt.IsZero()}}
	case reservation.Held, reservation.Expired:
	default:
		return word{err: &reservation.ConflictError{Op: reservation.OpRelease, State: cur.State}}
	}
	if held {
		for _, l := range cur.Lines {
			b.move(l.Bucket(cur.Shop)).unpooled += l.Quantity
		}
		b.freed.add(cur.Record)
	}
	cur.State, cur.ReleasedAt = reservation.Released, b.at
	b.end(cur, fresh, 2)
	return word{release: reservation.ReleaseResult{Record: cur.Record, WasExpired: !held}}
}

// move is what the transaction does to one bucket.
func (b *endings) move(bucket reservation.Bucket) *move {
	mv := b.moves[bucket]
	if mv == nil {
		mv = &move{bucket: bucket}
		b.moves[bucket] = mv
	}
	return mv
}

// end writes a reservation's last state: 1 claimed, 2 released. A pin's instant goes with it.
func (b *endings) end(cur *row, fresh bool, kind int64) {
	if fresh {
		cur.Marked = true
		b.marked = append(b.marked, cur.ID)
	}
	if !cur.Late && !cur.Marked && cur.PinnedAt.IsZero() {
		b.plain[kind-1] = append(b.plain[kind-1], cur.ID[:])
		return
	}
	if b.ended++; b.ended > 1 {
		b.ends = append(b.ends, ',')
	}
	b.ends = append(b.ends, '[', '"')
	b.ends = hex.AppendEncode(b.ends, cur.ID[:])
	b.ends = append(b.ends, '"', ',')
	b.ends = strconv.AppendInt(b.ends, kind, 10)
	for _, is := range []bool{cur.Late, cur.Marked} {
		b.ends = append(b.ends, ',', '0')
		if is {
			b.ends[len(b.ends)-1] = '1'
		}
	}
	if !cur.PinnedAt.IsZero() {
		b.ends = appendTime(append(b.ends, ','), cur.PinnedAt)
	}
	b.ends = append(b.ends, ']')
}

func (b *endings) writes(t *tx) []statement {
	if b.ended+len(b.plain[0])+len(b.plain[1]) == 0 {
		return nil
	}
	var sts []statement
	if len(b.moves) > 0 {
		moves := make([]move, 0, len(b.moves))
		for _, mv := range b.moves {
			moves = append(moves, *mv)
		}
		sts = append(sts, t.moves(moves))
	}
	const rows = "reservations"
	for n, query := range []string{qRecordsClaimPlain, qRecordsReleasePlain} {
		if ids := b.plain[n]; len(ids) > 0 {
			sts = append(sts, change("record", len(ids), rows, query+repeat("?", len(ids))+")", append([]any{b.at}, ids...)...))
		}
	}
	if b.ended > 0 {
		sts = append(sts, change("record", b.ended, rows, qRecordsEnd, "["+string(b.ends)+"]", b.at, b.at))
	}
	sts = append(sts, b.freed.deletes()...)
	if n := len(b.entries) / 7; n > 0 {
		sts = append(sts, insert("entries", qEntriesClaimMany+repeat(entryValues, n), b.entries...))
	}
	if len(b.marked) > 0 {
		sts = append(sts, insert("mark", qMarksInsert, t.now, jsonHex(b.marked)))
	}
	return sts
}

// freed are the reservations whose live lines a shared transaction drops.
type freed struct {
	ids   []reservation.ID
	lines int
	of    map[reservation.Bucket][]any // ids, by bucket
}

func (f *freed) add(rec reservation.Record) {
	f.ids = append(f.ids, rec.ID)
	f.lines += len(rec.Lines)
	if f.of == nil {
		f.of = map[reservation.Bucket][]any{}
	}
	for _, l := range rec.Lines {
		b := l.Bucket(rec.Shop)
		f.of[b] = append(f.of[b], rec.ID[:])
	}
}

// linesPerBucket is how many lines of a bucket, on the average, are worth a statement of its own.
const linesPerBucket = 8

// deletes drops the lines bucket by bucket where these are few, else reservation by reservation.
func (f *freed) deletes() []statement {
	const rows = "live lines"
	if f.lines == 0 {
		return nil
	}
	if len(f.of) > 1 && len(f.of)*linesPerBucket > f.lines {
		return []statement{change("lines", f.lines, rows, qLinesDeleteMany, jsonHex(f.ids))}
	}
	var sts []statement
	for _, b := range slices.SortedFunc(maps.Keys(f.of), reservation.Bucket.Compare) {
		ids := f.of[b]
		sts = append(sts, change("", len(ids), rows, qLinesDeleteOf+repeat("?", len(ids))+")", append([]any{b.Shop, b.Item, b.Group}, ids...)...))
	}
	sts[len(sts)-1].step = "lines"
	return sts
}
