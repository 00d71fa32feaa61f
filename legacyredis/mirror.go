package legacyredis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/twinhold/twinhold/reservation"
)

// Mirror judges an operation that the truth has carried out and stores what the truth did, in one script. It may come
// in any order and any number of times: states only move up, units and the ledger's changes move once. A hold is taken
// by force, so that available may go below zero. A pin is left alone: only the end of its claim (claimed, refused)
// moves it, and a release that expects it (op.Expect).
//
// Where MySQL decides in st's stage the operation is the truth's, else Redis's own record is: then a held one there
// stands against a rejection, and the other way round, unless op.Adopt says that somebody was promised it.
func (s *Store) Mirror(ctx context.Context, st reservation.Stamp, op reservation.MirrorOp) (reservation.Judgement, error) {
	if op.Decision.Stores() && op.Record.State == reservation.Claimed && len(op.Changes) == 0 {
		return reservation.Judgement{}, &reservation.InvalidError{
			Field: "changes", Reason: "are missing: a claimed record brings those of its ledger entries",
		}
	}
	c, err := s.mirrorCall(st, op)
	if err != nil {
		return reservation.Judgement{}, err
	}
	return s.mirror(ctx, c, op)
}

func (s *Store) mirror(ctx context.Context, c call, op reservation.MirrorOp) (reservation.Judgement, error) {
	r, err := s.run(ctx, c)
	return s.judged(c, op, r, err)
}

func (s *Store) judged(c call, op reservation.MirrorOp, r reply, err error) (reservation.Judgement, error) {
	if err != nil {
		return reservation.Judgement{}, err
	}
	if r.status != "JUDGED" {
		return reservation.Judgement{}, strange(c, r)
	}
	return s.decodeJudgement(r, op)
}

// unknownState is how the script spells the state of a record that is not there.
const unknownState = "unknown"

func (s *Store) mirrorCall(st reservation.Stamp, op reservation.MirrorOp) (call, error) {
	stores := op.Decision.Stores()
	rec := op.Record
	if stores {
		if err := checkMirrored(op); err != nil {
			return call{}, err
		}
		if rec.State == reservation.Claiming || rec.State == reservation.Provisional {
			rec.State = reservation.Held
		}
	}
	expect := ""
	if op.Expect != nil {
		expect = unknownState
		if op.Expect.Valid() {
			expect = op.Expect.String()
		}
	}
	c := call{script: s.scripts.mirror, op: op.Op, stamp: st, readOnly: !stores, args: []any{
		op.Op.String(), op.Decision.String(), flag(op.Replayed), flag(op.Adopt), expect,
		flag(st.Stage.Valid() && st.Stage.Truth() == reservation.MySQL), flag(stores), token(), packChanges(op.Changes),
	}}
	if op.Op == reservation.OpAdjust {
		if op.Adjustment == nil {
			return call{}, errors.New("legacyredis: a mirrored adjustment lacks its Adjustment")
		}
		a := op.Adjustment
		c.args = append(c.args, "", "bucket", a.Bucket.String(), "delta", strconv.FormatInt(a.Delta, 10), "force", flag(a.Force))
		return c, nil
	}
	c.args = append(c.args, rec.ID.String())
	c.args = append(c.args, encodeRecord(rec)...)
	return c, nil
}

// checkMirrored refuses an operation that could not be stored.
func checkMirrored(op reservation.MirrorOp) error {
	rec := op.Record
	bad := func(field, reason string) error { return &reservation.InvalidError{Field: field, Reason: reason} }
	switch {
	case op.Op == reservation.OpAdjust:
		return bad("op", "is an adjustment that was carried out: its change comes with its finish")
	case rec.ID == (reservation.ID{}):
		return bad("record.id", "is empty")
	case rec.Shop <= 0 || len(rec.Lines) == 0:
		return bad("record", "lacks its shop or lines: a record travels whole")
	case !rec.State.Valid():
		return bad("record.state", "is none")
	case rec.Outcome != reservation.Granted && rec.Outcome != reservation.RejectedShort:
		return bad("record.outcome", "is none of a reserve")
	case rec.ExpiresAt.IsZero() || rec.PurgeAt.IsZero() || rec.CreatedAt.IsZero():
		return bad("record", "lacks its times: created, expires and purge travel with it")
	default:
		return nil
	}
}

func (s *Store) decodeJudgement(r reply, op reservation.MirrorOp) (reservation.Judgement, error) {
	var j reservation.Judgement
	var err error
	if j.Decision, err = parseDecision(r.text(0)); err != nil {
		return j, err
	}
	if r.text(1) != "" {
		if j.State, err = reservation.ParseState(r.text(1)); err != nil {
			return j, fmt.Errorf("redis: reply %s: %w", r.status, err)
		}
	}
	flags := r.text(2)
	j.Stored, j.Backfilled, j.Overtaken = strings.Contains(flags, "s"), strings.Contains(flags, "b"), strings.Contains(flags, "o")
	if j.Forced, err = r.number(3); err != nil {
		return j, err
	}
	d := decoder{m: map[string]string{"seen": r.text(4), "shortages": r.text(5)}}
	if strings.Contains(flags, "l") && j.Decision != op.Decision {
		j.Levels = judgedLevels(op, d.tuples("seen", 1))
	}
	if j.Decision == reservation.RejectedShort {
		j.Shortages = d.shortages("shortages")
	}
	if d.err != nil {
		return j, fmt.Errorf("redis: reply %s %w", r.status, d.err)
	}
	fields, err := r.fields(6)
	if err != nil || len(fields) == 0 {
		return j, err
	}
	rec, err := s.keys.decodeRecord(op.Record.ID, fields)
	j.Record = &rec.Record
	return j, err
}

// judgedLevels are what Redis saw in the operation's buckets.
func judgedLevels(op reservation.MirrorOp, seen [][]int64) []reservation.Level {
	if op.Adjustment != nil && len(seen) == 1 {
		return []reservation.Level{{Bucket: op.Adjustment.Bucket, Available: seen[0][0]}}
	}
	nums := make([]int64, len(seen))
	for i, t := range seen {
		nums[i] = t[0]
	}
	return levels(op.Record.Shop, op.Record.Lines, nums)
}

// parseDecision is the inverse of Decision.String; empty is none.
func parseDecision(text string) (reservation.Decision, error) {
	if text == "" {
		return 0, nil
	}
	for d := reservation.Granted; d <= reservation.Undecided; d++ {
		if d.String() == text {
			return d, nil
		}
	}
	return 0, fmt.Errorf("redis: reply holds the decision %q, which nobody expects", text)
}
