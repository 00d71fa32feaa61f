package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// plainClaims is a shared transaction of claims that leave nothing to decide, as far as was seen without locks: holds of
// one line of one bucket, where MySQL decides, far from their expiry. All of it travels in one packet, so that the
// ledger's row is never held while anybody here computes or a reply is on its way. The server itself compares what it
// finds under its locks with what was seen, and commits nothing where it is otherwise: then the claims are carried out
// like any others.
type plainClaims struct {
	s       *Store
	members []*member
	bucket  reservation.Bucket
	units   map[int64][]any // ids, by the quantity of their line
	sum     int64
	at      time.Time

	version int64 // the ledger's after the last of them
}

// quantities is how many different ones a plain batch may have: the lines of each are dropped by a statement.
const quantities = 4

// clearOfExpiry is how far from its expiry a hold has to be: nothing in the transaction may wait for longer.
func (s *Store) clearOfExpiry() time.Duration { return s.opts.LockWait + s.opts.WriteTimeout }

// plainClaims tells whether the batch is such a one; nil if not.
func (s *Store) plainClaims(batch []*member) *plainClaims {
	if s.packets == nil || batch[0].stamp.Stage.Truth() != reservation.MySQL {
		return nil
	}
	b := &plainClaims{s: s, members: batch, units: map[int64][]any{}}
	for n, m := range batch {
		e := m.ending
		if e.op != reservation.OpClaim || e.mark || len(e.seen.Lines) != 1 || !s.looksPlain(e) {
			return nil
		}
		line := e.seen.Lines[0]
		if n == 0 {
			b.bucket = line.Bucket(e.seen.Shop)
		} else if b.bucket != line.Bucket(e.seen.Shop) {
			return nil
		}
		b.units[line.Quantity] = append(b.units[line.Quantity], e.seen.ID[:])
		b.sum += line.Quantity
	}
	var known bool
	if b.at, known = s.clock.now(s.opts.Now()); !known || len(b.units) > quantities {
		return nil
	}
	return b
}

// looksPlain: it was seen as a hold that nobody marked, with time left. A pin says so of Redis's record.
func (s *Store) looksPlain(e *ending) bool {
	r := e.seen
	if e.pin != nil {
		return !r.Marked
	}
	return r.State == reservation.Held && !r.Marked && !r.ExpiresAt.IsZero() &&
		(r.at.IsZero() || r.ExpiresAt.After(r.at.Add(s.clearOfExpiry())))
}

// run carries the claims out; done is false where they have to be carried out like any others.
func (b *plainClaims) run(ctx context.Context, w work) (done bool, err error) {
	began := b.s.opts.Now()
	defer func() { b.s.metrics.duration.WithLabelValues(w.path).Observe(b.s.opts.Now().Sub(began).Seconds()) }()
	err = b.s.inTxOn(ctx, b.s.packets, b.s.opts.WriteTimeout, "", "", func(ctx context.Context, t *tx) error {
		t.path, t.stamp, t.packets = w.path, w.stamp, true
		return b.s.sendAndCommit(ctx, t, b.statements())
	})
	var ce *commitError
	if err != nil && !errors.As(err, &ce) {
		return false, nil // it was not committed, and whoever runs it again says why
	}
	return true, err
}

// statements: the fence first, as everywhere. The ledger's row comes late, for as short a time as can be. Whoever has it
// and wants one of these reservations too, which are far from their expiry, is a claim or a release of the very same one:
// then the server ends one of the two (1213), which is run again.
func (b *plainClaims) statements() []statement {
	n, k := len(b.members), b.bucket
	st, pod := b.members[0].stamp, []byte(b.s.opts.Pod)
	var fence fenceRow
	matched := n // by the statement before
	sts := []statement{
		{query: qStart},
		{query: qFenceShare, args: []any{pod}, scan: fence.scan, then: func() error {
			b.s.clock.note(fence.now, b.s.opts.Now())
			return nil
		}},
		b.records(),
	}
	for _, q := range slices.Sorted(maps.Keys(b.units)) {
		ids := b.units[q]
		sts = append(sts, insert("lines", qLinesClaim+repeat("?", len(ids))+")", append([]any{k.Shop, k.Item, k.Group, q, matched}, ids...)...))
		matched = len(ids)
	}
	return append(sts,
		change("ledger", 1, "ledger rows", qLedgerClaim, -b.sum, n, k.Shop, k.Item, k.Group, -b.sum, matched, pod, st.Epoch, st.Stage.String()),
		statement{query: qVersionKeep, args: []any{k.Shop, k.Item, k.Group}},
		b.entries(),
		statement{query: qVersionKept, scan: func(rows *sql.Rows) error { return asSQL(rows.Scan(&b.version)) }},
	)
}

// records ends the reservations, each with the instant of its pin.
func (b *plainClaims) records() statement {
	query, args := claimRecords, []any{b.at}
	var ids []any
	pins := 0
	for _, m := range b.members {
		ids = append(ids, m.id[:])
		if pin := m.ending.pin; pin != nil && !pin.Record.PinnedAt.IsZero() {
			args = append(args, m.id[:], pin.Record.PinnedAt)
			pins++
		}
	}
	if pins > 0 {
		query += pinnedBy + strings.Repeat(pinnedWhen, pins) + pinnedElse
	}
	args = append(args, b.bucket.Shop, b.s.clearOfExpiry().Microseconds(), b.at, clockError.Microseconds())
	return insert("record", query+ofClaimable+repeat("?", len(ids))+")", append(args, ids...)...)
}

// entries journals the claims, each with a version of its own.
func (b *plainClaims) entries() statement {
	var args []any
	for n, m := range b.members {
		args = append(args, b.bucket.Shop, b.bucket.Item, b.bucket.Group, m.id[:], -m.ending.seen.Lines[0].Quantity, len(b.members)-1-n, b.at)
	}
	return insert("entries", qEntriesClaimMany+repeat(entryKept, len(b.members)), args...)
}

// words is what each member is told of what was committed.
func (b *plainClaims) words() []word {
	out := make([]word, len(b.members))
	for n, m := range b.members {
		rec := m.ending.seen.Record
		rec.State, rec.ClaimedAt = reservation.Claimed, b.at
		if m.ending.pin == nil {
			out[n] = word{claim: reservation.ClaimResult{Record: rec}}
			continue
		}
		out[n] = word{deduct: reservation.Deduction{
			State: reservation.Claimed, At: b.at,
			Changes: []reservation.Change{{
				Bucket: b.bucket, Delta: -rec.Lines[0].Quantity, Version: b.version - int64(len(b.members)-1-n),
			}},
			Judgement: reservation.Judgement{Decision: reservation.ClaimedOK, State: reservation.Claimed},
		}}
	}
	return out
}
