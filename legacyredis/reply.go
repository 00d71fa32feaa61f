package legacyredis

import (
	"fmt"
	"strconv"

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
	e := &reservation.FenceError{Store: reservation.Redis, Verdict: reservation.NoFence, Caller: caller}
	if r.status == "NOFENCE" {
		return e
	}
	e.Verdict = reservation.Regressed
	if r.status == "STALE" {
		e.Verdict = reservation.Stale
	}
	f, err := parseFence(func(i int) string { return r.text(i) })
	if err != nil {
		return err
	}
	e.Fence = f
	return e
}

// parseFence reads a fence in the order epoch, stage, incarnation, incarnation_epoch, server, frozen.
func parseFence(field func(i int) string) (reservation.Fence, error) {
	var f reservation.Fence
	var err error
	if f.Epoch, err = strconv.ParseUint(field(0), 10, 64); err != nil {
		return f, &reservation.CorruptError{Store: reservation.Redis, What: fmt.Sprintf("the fence's epoch is %q", field(0))}
	}
	if f.Stage, err = reservation.ParseStage(field(1)); err != nil {
		return f, &reservation.CorruptError{Store: reservation.Redis, What: fmt.Sprintf("the fence's stage is %q", field(1))}
	}
	for i, to := range map[int]*uint64{2: &f.Incarnation, 3: &f.IncarnationEpoch} {
		if field(i) == "" {
			continue
		}
		if *to, err = strconv.ParseUint(field(i), 10, 64); err != nil {
			return f, &reservation.CorruptError{Store: reservation.Redis, What: fmt.Sprintf("the fence's incarnation is %q", field(i))}
		}
	}
	f.Server, f.Frozen = field(4), field(5) == "1"
	return f, nil
}
