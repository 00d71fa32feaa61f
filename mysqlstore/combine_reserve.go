package mysqlstore

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// attempt is one try of a reserve: in the lane of its first bucket, or by itself where it is not to share.
func (a *reserving) attempt(ctx context.Context) error {
	if a.s.opts.NoLanes || a.ledger || a.prior != nil || a.s.large(a.req.Lines) {
		return a.try(ctx, nil)
	}
	m := &member{
		ctx: ctx, stamp: a.st, id: a.id, shop: a.req.Shop, key: a.req.Key,
		lines: len(a.req.Lines), units: reservation.Units(a.req.Lines), reserve: a,
	}
	w := a.s.join(laneKey{reserveLane, a.req.Lines[0].Bucket(a.req.Shop)}, reservation.OpReserve, m)
	switch {
	case w.turn != nil:
		defer w.turn.end()
		return a.try(ctx, w.turn.end)
	case w.why != "":
		a.prior, a.again = w.prior, a.again || w.prior != nil
		return a.try(ctx, nil)
	case errors.Is(w.err, errNotLookedUp):
		return a.attempt(ctx)
	default:
		a.res = w.result
		return w.err
	}
}

// errNotLookedUp: there are too few units, but the key may have its answer already.
var errNotLookedUp = errors.New("the key was not looked up")

// replayMemory is how long keys are looked up before they are inserted, after one that was there already.
const replayMemory = time.Second

// reserves is a shared transaction of reserves. Each is answered by the record that has its key, or rejected as a
// look has said before, or granted if the units that could be locked go as far, first come, first served. Where no key
// has come twice of late, none is looked up: one that is there fails the insert, and then all are looked up.
type reserves struct {
	s       *Store
	members []*member
	lookUp  bool      // the keys
	levels  [][]level // of each member; not nil: sold out
	wants   []want    // by bucket, summed over the members

	old   map[laneKeyOf]*row
	free  freeUnits
	words []word // by member

	took   [][]int64
	recs   []reservation.Record
	marked []reservation.ID
}

func (s *Store) shareReserves(ctx context.Context, batch []*member) {
	b := &reserves{s: s, members: batch}
	b.prepare()
	w := work{path: "reserve_shared", op: reservation.OpReserve, stamp: batch[0].stamp}
	for _, m := range batch {
		w.lines += m.lines
	}
	err := s.together(ctx, w, b)
	if err != nil && !b.lookUp && retryReason(err) == "1062" {
		s.metrics.retries.WithLabelValues("1062").Inc()
		b.lookUp = true
		err = s.together(ctx, w, b)
	}
	if err != nil {
		s.tellAll(batch, err, time.Time{}, nil)
		return
	}
	if len(b.old) > 0 {
		s.replayed.Store(s.opts.Now().UnixNano())
	}
	for n, m := range batch {
		s.tell(m, b.words[n])
	}
}

// prepare sums what is wanted. What a member knows as sold out is believed if it is fresh.
func (b *reserves) prepare() {
	sums := map[reservation.Bucket]int64{}
	b.levels = make([][]level, len(b.members))
	now := b.s.opts.Now()
	b.lookUp = now.Sub(time.Unix(0, b.s.replayed.Load())) < replayMemory
	for n, m := range b.members {
		b.lookUp = b.lookUp || m.reserve.again || m.reserve.lookUp
		if m.reserve.believes(now) {
			b.levels[n] = m.reserve.levels
			continue
		}
		for _, l := range m.reserve.req.Lines {
			sums[l.Bucket(m.shop)] += l.Quantity
		}
	}
	b.wants = sortedWants(sums)
}

// sortedWants is what is wanted, in primary-key order.
func sortedWants(sums map[reservation.Bucket]int64) []want {
	var wants []want
	for bucket, units := range sums {
		wants = append(wants, want{bucket, units})
	}
	slices.SortFunc(wants, func(x, y want) int { return x.bucket.Compare(y.bucket) })
	return wants
}

func (b *reserves) opening() []statement {
	b.old, b.free = map[laneKeyOf]*row{}, freeUnits{}
	locks := b.free.lock(b.wants)
	if !b.lookUp {
		return locks
	}
	return append([]statement{{query: qRecordsByKey, args: []any{jsonKeys(b.members)}, scan: func(rows *sql.Rows) error {
		r, err := scanRow(rows)
		if err == nil {
			b.old[laneKeyOf{r.Shop, r.Key}] = r
		}
		return err
	}}}, locks...)
}

func (b *reserves) decide(t *tx) ([]statement, error) {
	b.words = make([]word, len(b.members))
	b.took, b.recs, b.marked = nil, nil, nil
	for n, m := range b.members {
		b.words[n] = b.decideOne(t, m, b.levels[n])
	}
	t.takes(b.took)
	sts := unitDeletes(t, b.took)
	return append(sts, insertRecords(b.recs, nil, b.marked, t)...), nil
}

// decideOne says what one member is told, if the transaction is committed.
func (b *reserves) decideOne(t *tx, m *member, levels []level) word {
	a := m.reserve
	if old := b.old[laneKeyOf{m.shop, m.key}]; old != nil && m.key != "" {
		return a.replayed(old)
	}
	switch {
	case a.again:
		return word{why: "case"} // it may be there under its id
	case a.req.Frozen || t.fence.Forbids(m.shop, a.req.Lines):
		if !b.lookUp {
			return word{why: "case"} // it may have been answered before
		}
		return word{err: reservation.ErrFrozen}
	case levels == nil && !b.free.grant(m.shop, a.req.Lines, &b.took):
		if !b.lookUp {
			a.lookUp = true
			return word{err: errNotLookedUp}
		}
		return word{err: errShort}
	}
	rec := a.record(t, reservation.Granted, reservation.Held)
	res := reservation.Result{Record: rec}
	if levels != nil {
		rec = a.record(t, reservation.RejectedShort, reservation.Rejected)
		rec.Shortages = shortagesOf(a.req.Lines, levels)
		res = reservation.Result{Record: rec, Levels: levelsOf(levels)}
	}
	b.recs = append(b.recs, rec)
	if a.mark {
		b.marked = append(b.marked, rec.ID)
	}
	return word{result: res}
}

// replayed answers with the record that has the key; what has to be written for that is done alone.
func (a *reserving) replayed(old *row) word {
	switch {
	case old.purged():
		return word{err: &keyTakenError{old}}
	case old.Hash != a.req.Hash:
		return word{err: reservation.ErrKeyConflict}
	case a.mark && !old.Marked:
		return word{why: "case"}
	default:
		return word{result: reservation.Result{Record: old.Record, Replayed: old.ID != a.id || !a.again}}
	}
}

// freeUnits are the unit rows that a shared transaction has locked and not given to anybody yet.
type freeUnits map[reservation.Bucket][]int64

// lock gives the statements that lock what is wanted, as far as it is free.
func (f freeUnits) lock(wants []want) []statement {
	var sts []statement
	for chunk := range slices.Chunk(wants, unitChunk) {
		q, args := unitsQuery(lockSkip, chunk)
		sts = append(sts, statement{query: q, args: args, scan: func(rows *sql.Rows) error {
			n, id, err := scanUnit(rows, chunk)
			if err == nil {
				f[chunk[n].bucket] = append(f[chunk[n].bucket], id)
			}
			return err
		}})
	}
	return sts
}

// grant takes the units of all lines, if there are enough of each, and adds them to those that are taken.
func (f freeUnits) grant(shop int64, lines []reservation.Line, took *[][]int64) bool {
	for _, l := range lines {
		if int64(len(f[l.Bucket(shop)])) < l.Quantity {
			return false
		}
	}
	for _, l := range lines {
		bucket := l.Bucket(shop)
		for _, id := range f[bucket][:l.Quantity] {
			*took = append(*took, []int64{bucket.Shop, bucket.Item, bucket.Group, id})
		}
		f[bucket] = f[bucket][l.Quantity:]
	}
	return true
}

// insertRecords writes new records, the live lines of those that hold, and the marks. What a mirror judged of each is
// given by record, or is nil.
func insertRecords(recs []reservation.Record, judged [][]byte, marked []reservation.ID, t *tx) []statement {
	if len(recs) == 0 {
		return nil
	}
	args := make([]any, 0, 15*len(recs))
	var lines []any
	for n := range recs {
		r := &recs[n]
		var key, verdict []byte
		if r.Key != "" {
			key = []byte(r.Key)
		}
		if judged != nil {
			verdict = judged[n]
		}
		args = append(args, r.ID[:], r.Shop, key, r.Hash[:], packCart(r.Lines), r.Outcome.String(), packShortages(r.Shortages),
			r.State.String(), r.DecidedBy.String(), r.Epoch, r.Marked, verdict, r.CreatedAt, r.ExpiresAt, r.PurgeAt)
		if !r.State.TakesUnits() {
			continue
		}
		for _, l := range r.Lines {
			lines = append(lines, r.Shop, l.Item, l.Group, r.ID[:], l.Quantity)
		}
	}
	sts := []statement{insert("record", qRecordsInsert+repeat(recordValues, len(recs)), args...)}
	if n := len(lines) / 5; n > 0 {
		sts = append(sts, insert("lines", qLinesInsertMany+repeat(lineValues, n), lines...))
	}
	if len(marked) > 0 {
		sts = append(sts, insert("mark", qMarksInsert, t.now, jsonHex(marked)))
	}
	return sts
}

func repeat(values string, n int) string {
	return strings.Repeat(values+", ", n-1) + values
}

// jsonKeys writes shops and keys as qRecordsByKey reads them.
func jsonKeys(members []*member) string {
	b := []byte{'['}
	for _, m := range members {
		if m.key == "" {
			continue
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(b, '[')
		b = strconv.AppendInt(b, m.shop, 10)
		b = append(b, ',', '"')
		b = hex.AppendEncode(b, []byte(m.key))
		b = append(b, '"', ']')
	}
	return string(append(b, ']'))
}
