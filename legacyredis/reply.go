package legacyredis

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/twinhold/twinhold/reservation"
)

// reply is a script's answer: a status, and what the script's header says comes with it.
type reply struct {
	status string
	vals   []any
}

// text gives the i-th value after the status.
func (r reply) text(i int) string {
	if i >= len(r.vals) {
		return ""
	}
	s, ok := r.vals[i].(string)
	if !ok {
		return fmt.Sprint(r.vals[i])
	}
	return s
}

func (r reply) number(i int) (int64, error) {
	n, err := strconv.ParseInt(r.text(i), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("redis: reply %s: %w", r.status, err)
	}
	return n, nil
}

// fields gives the i-th value as the fields of a hash.
func (r reply) fields(i int) (map[string]string, error) {
	if i >= len(r.vals) {
		return nil, fmt.Errorf("redis: reply %s has only %d values", r.status, len(r.vals))
	}
	flat, ok := r.vals[i].([]any)
	if !ok || len(flat)%2 != 0 {
		return nil, fmt.Errorf("redis: reply %s: value %d holds no fields", r.status, i)
	}
	m := make(map[string]string, len(flat)/2)
	for j := 0; j < len(flat); j += 2 {
		k, ok1 := flat[j].(string)
		v, ok2 := flat[j+1].(string)
		if !ok1 || !ok2 {
			return nil, fmt.Errorf("redis: reply %s: value %d holds no fields", r.status, i)
		}
		m[k] = v
	}
	return m, nil
}

// answer makes a reply of what Redis sent, and an error of the statuses that any script may give.
func (s *Store) answer(c call, raw any) (reply, error) {
	vals, ok := raw.([]any)
	if !ok || len(vals) == 0 {
		return reply{}, fmt.Errorf("redis: script %s replied %T", c.script.name, raw)
	}
	status, ok := vals[0].(string)
	if !ok {
		return reply{}, fmt.Errorf("redis: script %s replied no status", c.script.name)
	}
	r := reply{status: status, vals: vals[1:]}
	s.metrics.replies.WithLabelValues(c.script.name, status).Inc()
	switch status {
	case "STALE", "REGRESSED", "NOFENCE":
		return r, fenceError(c.stamp, r)
	case "RESTORING":
		return r, reservation.ErrRestoring
	case "LATCHED":
		return r, reservation.ErrLatched
	case "NOTLATCHED":
		return r, reservation.ErrNotLatched
	case "CORRUPT":
		return r, &reservation.CorruptError{Store: reservation.Redis, What: r.text(0) + " " + r.text(1)}
	case "FROZEN":
		return r, reservation.ErrFrozen
	case "BUSY":
		return r, reservation.ErrBusy
	case "KEYCONFLICT":
		return r, reservation.ErrKeyConflict
	case "NOTFOUND":
		return r, reservation.ErrNotFound
	case "UNKNOWNBUCKET":
		b, ok := parseBucket(r.text(0))
		if !ok {
			return r, fmt.Errorf("redis: reply names no bucket: %q", r.text(0))
		}
		return r, &reservation.UnknownBucketError{Bucket: b}
	case "CONFLICT":
		st, err := reservation.ParseState(r.text(0))
		if err != nil {
			return r, fmt.Errorf("redis: reply %s: %w", status, err)
		}
		return r, &reservation.ConflictError{Op: c.op, State: st}
	}
	return r, nil
}

// strange is the error of a reply that the script's header does not list.
func strange(c call, r reply) error {
	return fmt.Errorf("redis: script %s replied %q, which nobody expects", c.script.name, r.status)
}

func fenceError(caller reservation.Stamp, r reply) error {
	e := &reservation.FenceError{Store: reservation.Redis, Caller: caller}
	switch r.status {
	case "NOFENCE":
		e.Verdict = reservation.NoFence
	case "STALE":
		e.Verdict = reservation.Stale
	default:
		e.Verdict = reservation.Regressed
	}
	var err error
	if e.Fence, err = parseFence(r); err != nil {
		return err
	}
	return e
}

// parseFence reads a fence in the order of the scripts' whole(): epoch, stage, incarnation, incarnation_epoch, server,
// frozen, suspect, frozen_buckets, killed, latch. Without an epoch there is none, but the latch and the suspicion
// are told all the same.
func parseFence(r reply) (reservation.Fence, error) {
	f := reservation.Fence{
		Server: r.text(4), Frozen: r.text(5) == "1", Suspect: r.text(6) == "1", Killed: r.text(8) == "1", Latch: r.text(9),
	}
	corrupt := func(what string, i int) error {
		return &reservation.CorruptError{Store: reservation.Redis, What: fmt.Sprintf("the fence's %s is %q", what, r.text(i))}
	}
	if r.text(0) == "" {
		return f, nil
	}
	var err error
	if f.Epoch, err = strconv.ParseUint(r.text(0), 10, 64); err != nil {
		return f, corrupt("epoch", 0)
	}
	if f.Stage, err = reservation.ParseStage(r.text(1)); err != nil {
		return f, corrupt("stage", 1)
	}
	for i, to := range map[int]*uint64{2: &f.Incarnation, 3: &f.IncarnationEpoch} {
		if r.text(i) == "" {
			continue
		}
		if *to, err = strconv.ParseUint(r.text(i), 10, 64); err != nil {
			return f, corrupt("incarnation", i)
		}
	}
	for text := range strings.SplitSeq(r.text(7), ",") {
		if text == "" {
			continue
		}
		b, ok := parseBucket(text)
		if !ok {
			return f, corrupt("list of frozen buckets", 7)
		}
		f.FrozenBuckets = append(f.FrozenBuckets, b)
	}
	return f, nil
}
