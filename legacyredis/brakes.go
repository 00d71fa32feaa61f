package legacyredis

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/twinhold/twinhold/reservation"
)

// Move changes the stage if the fence is still m.From, and writes it down in the same step. While the latch is there
// only the way back to shadow is open.
func (s *Store) Move(ctx context.Context, m reservation.FenceMove) (reservation.Fence, error) {
	if !m.From.Stage.CanMoveTo(m.To) {
		return reservation.Fence{}, &reservation.InvalidError{
			Field: "stage", Reason: fmt.Sprintf("cannot go from %s to %s in one step", m.From.Stage, m.To),
		}
	}
	body, err := s.auditBody(m.Audit, reservation.ActionFlip)
	if err != nil {
		return reservation.Fence{}, err
	}
	return s.fence(ctx, call{script: s.scripts.move, stamp: m.From, args: []any{m.To.String(), body, token()}})
}

// killedBefore is the detail of the record of a kill that found the pod killed; the script puts the latch's reason behind it.
const killedBefore = "killed before: "

// Kill sets the latch and folds it: in handover and cutover the stage is shadow afterwards, in shadow the latch alone is
// set. A second kill changes nothing, and is written down unless the last record of a kill is of the same latch and
// gives the same reason. In legacy and complete it is refused. It never asks MySQL, and works on a Redis
// at maxmemory too.
//
// A Redis in doubt gets the latch all the same, whatever it says of the stage, and the *reservation.FenceError of
// that doubt is given: Fence.Killed in it says that the latch is set. It counts as soon as that Redis has been restored.
func (s *Store) Kill(ctx context.Context, a reservation.AuditRecord) (reservation.Fence, error) {
	body, err := s.auditBody(a, reservation.ActionKill)
	if err != nil {
		return reservation.Fence{}, err
	}
	again := ""
	if a.Action == "" || a.Action == reservation.ActionKill {
		b := a
		b.Detail = killedBefore
		if again, err = s.auditBody(b, reservation.ActionKill); err != nil {
			return reservation.Fence{}, err
		}
	}
	c := call{script: s.scripts.kill, op: reservation.OpReserve, args: []any{a.Reason, body, again}}
	r, err := s.run(ctx, c)
	switch {
	case err != nil:
		return fenceOf(err), err
	case r.status != "FENCE" && r.status != "REFUSED":
		return reservation.Fence{}, strange(c, r)
	}
	f, err := parseFence(r)
	if err == nil && r.status == "REFUSED" {
		err = &reservation.InvalidError{Field: "stage", Reason: fmt.Sprintf("is %s: there is nothing to kill", f.Stage)}
	}
	return f, err
}

// Rearm takes the latch away, if the fence is still from, and raises the epoch. The stage stays.
func (s *Store) Rearm(ctx context.Context, from reservation.Stamp, a reservation.AuditRecord) (reservation.Fence, error) {
	body, err := s.auditBody(a, reservation.ActionRearm)
	if err != nil {
		return reservation.Fence{}, err
	}
	return s.fence(ctx, call{script: s.scripts.rearm, stamp: from, args: []any{body, token()}})
}

// Freeze sets or lifts the brake of the pod (the zero bucket) or of one bucket: no new reservations; everything else
// goes on. Where it is so already nothing is changed or written down.
func (s *Store) Freeze(ctx context.Context, b reservation.Bucket, on bool, a reservation.AuditRecord) (reservation.Fence, error) {
	action, what := reservation.ActionUnfreeze, ""
	if on {
		action = reservation.ActionFreeze
	}
	if b != (reservation.Bucket{}) {
		if err := b.Validate(); err != nil {
			return reservation.Fence{}, err
		}
		what = b.String()
		if a.Detail == "" {
			a.Detail = "bucket " + what
		}
	}
	body, err := s.auditBody(a, action)
	if err != nil {
		return reservation.Fence{}, err
	}
	return s.fence(ctx, call{script: s.scripts.freeze, args: []any{what, flag(on), body}})
}

// auditStamp is a stamp as people read it.
type auditStamp struct {
	Epoch uint64 `json:"epoch"`
	Stage string `json:"stage"`
}

func (a auditStamp) stamp() reservation.Stamp {
	stage, _ := reservation.ParseStage(a.Stage) // no stage: there was no fence
	return reservation.Stamp{Epoch: a.Epoch, Stage: stage}
}

// auditEntry is an audit record as {pod}:audit holds it.
type auditEntry struct {
	At     string            `json:"at,omitempty"`
	Before *auditStamp       `json:"before,omitempty"`
	After  *auditStamp       `json:"after,omitempty"`
	Pod    string            `json:"pod"`
	Action string            `json:"action"`
	By     string            `json:"by,omitempty"`
	Reason string            `json:"reason,omitempty"`
	Ticket string            `json:"ticket,omitempty"`
	Waived []string          `json:"waived,omitempty"`
	Debt   *reservation.Debt `json:"debt,omitempty"`
	Detail string            `json:"detail,omitempty"`
}

// auditBody is what a caller says of an audit record: the script puts its time and both stamps in front.
func (s *Store) auditBody(a reservation.AuditRecord, action string) (string, error) {
	if a.Action != "" {
		action = a.Action
	}
	body, err := json.Marshal(auditEntry{
		Pod: s.pod, Action: action, By: a.By, Reason: a.Reason, Ticket: a.Ticket, Waived: a.Waived, Debt: a.Debt, Detail: a.Detail,
	})
	if err != nil {
		return "", fmt.Errorf("redis: audit record: %w", err)
	}
	return string(body), nil
}
