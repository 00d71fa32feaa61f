package legacyredis

import (
	"context"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Reserve decides a reservation: all lines or none. Rejections are stored too, so that both replay by key. In handover
// a grant is only Redis's half: provisional, until Confirm or TurnDown. A provisional hold that is met again is no
// replay, since nobody was answered: in its own epoch it is given as it is, in a later one it is decided afresh.
func (s *Store) Reserve(ctx context.Context, st reservation.Stamp, id reservation.ID, req reservation.Request) (reservation.Result, error) {
	if err := checkRequest(id, req); err != nil {
		return reservation.Result{}, err
	}
	c := call{script: s.scripts.reserve, op: reservation.OpReserve, stamp: st, args: []any{
		id.String(), strconv.FormatInt(req.Shop, 10), req.Key, hex.EncodeToString(req.Hash[:]),
		micros(req.TTL), micros(s.retention), packLines(req.Lines), flag(req.Frozen),
	}}
	s.fail(FailReserveBegun)
	r, err := s.run(ctx, c)
	if err != nil {
		return reservation.Result{}, err
	}
	s.fail(FailReserveDone)
	switch r.status {
	case "GRANTED", "REJECTED":
		return s.decided(st, id, req, r)
	case "SAME", "REPLAY":
		first, err := reservation.ParseID(r.text(0))
		if err != nil {
			return reservation.Result{}, &reservation.CorruptError{
				Store: reservation.Redis,
				What:  fmt.Sprintf("key index of shop %d holds %q, which is no id", req.Shop, r.text(0)),
			}
		}
		rec, err := s.recordOf(first, r, 1)
		if err != nil {
			return reservation.Result{}, err
		}
		res := reservation.Result{Record: s.asSettled(ctx, rec.Record), Replayed: r.status == "REPLAY"}
		if !res.Replayed {
			res.Levels = levels(rec.Shop, rec.Lines, rec.seen)
		}
		return res, nil
	}
	return reservation.Result{}, strange(c, r)
}

// checkRequest refuses what NewRequest would not have made.
func checkRequest(id reservation.ID, req reservation.Request) error {
	switch {
	case id == reservation.ID{}:
		return &reservation.InvalidError{Field: "reservationId", Reason: "is missing: make one with NewID"}
	case req.Shop <= 0 || req.Key == "" || len(req.Lines) == 0 || len(req.Lines) > reservation.MaxLines || req.TTL <= 0:
		return &reservation.InvalidError{Field: "request", Reason: "is incomplete: make it with NewRequest"}
	default:
		return nil
	}
}

// decided builds the result of a decision that was made just now.
func (s *Store) decided(st reservation.Stamp, id reservation.ID, req reservation.Request, r reply) (reservation.Result, error) {
	now, err := r.number(0)
	if err != nil {
		return reservation.Result{}, err
	}
	d := decoder{m: map[string]string{"seen": r.text(1), "shortages": r.text(2)}}
	var seen []int64
	for _, t := range d.tuples("seen", 1) {
		seen = append(seen, t[0])
	}
	created := time.UnixMicro(now).UTC()
	expires := created.Add(req.TTL.Truncate(time.Microsecond))
	rec := reservation.Record{
		ID: id, Shop: req.Shop, Key: strings.Clone(req.Key), Hash: req.Hash, Lines: req.Lines,
		Outcome: reservation.Granted, State: reservation.Held, DecidedBy: reservation.Redis, Epoch: st.Epoch,
		CreatedAt: created, ExpiresAt: expires, PurgeAt: expires.Add(s.retention),
	}
	if st.Stage.Route(reservation.OpReserve).Both {
		rec.State = reservation.Provisional
	}
	if r.status == "REJECTED" {
		rec.Outcome, rec.State = reservation.RejectedShort, reservation.Rejected
		rec.Shortages = d.shortages("shortages")
	}
	if d.err != nil {
		return reservation.Result{}, fmt.Errorf("redis: reply %s %w", r.status, d.err)
	}
	return reservation.Result{Record: rec, Levels: levels(req.Shop, req.Lines, seen)}, nil
}

// recordOf decodes the record in a reply.
func (s *Store) recordOf(id reservation.ID, r reply, at int) (stored, error) {
	m, err := r.fields(at)
	if err != nil {
		return stored{}, err
	}
	return s.keys.decodeRecord(id, m)
}

func levels(shop int64, lines []reservation.Line, seen []int64) []reservation.Level {
	if len(seen) != len(lines) {
		return nil
	}
	out := make([]reservation.Level, len(lines))
	for i, l := range lines {
		out[i] = reservation.Level{Bucket: l.Bucket(shop), Available: seen[i]}
	}
	return out
}
