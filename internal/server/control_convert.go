package server

import (
	"errors"
	"math"
	"strings"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	twinholdv1 "github.com/twinhold/twinhold/api/twinhold/v1"
	"github.com/twinhold/twinhold/killswitch"
	"github.com/twinhold/twinhold/reservation"
)

func invalid(field, reason string) error {
	return connect.NewError(connect.CodeInvalidArgument, &reservation.InvalidError{Field: field, Reason: reason})
}

// clip keeps what a caller sent out of a message, but for its beginning.
func clip(s string) string {
	const most = 64
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

// because checks what stands in the audit for good.
func because(reason, ticket string, needed bool) error {
	switch {
	case needed && strings.TrimSpace(reason) == "":
		return invalid("reason", "is empty: say why, it stands in the audit")
	case len(reason) > maxReason || !plain(reason):
		return invalid("reason", "is longer than 500 bytes, or has control characters")
	case len(ticket) > maxTicket || !plain(ticket):
		return invalid("ticket", "is longer than 200 bytes, or has control characters")
	default:
		return nil
	}
}

func plain(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// orderOf reads what a flip and a rearm have in common.
func orderOf(m interface {
	GetReason() string
	GetTicket() string
	GetWaive() []string
},
) (killswitch.Order, error) {
	waive := m.GetWaive()
	if err := because(m.GetReason(), m.GetTicket(), len(waive) > 0); err != nil {
		return killswitch.Order{}, err
	}
	const gates = 10
	if len(waive) > gates {
		return killswitch.Order{}, invalid("waive", "names more gates than there are")
	}
	return killswitch.Order{Waive: waive, Reason: m.GetReason(), Ticket: m.GetTicket()}, nil
}

func stageOf(text string) (reservation.Stage, error) {
	st, err := reservation.ParseStage(text)
	if err != nil {
		return 0, invalid("to", "is no stage: use legacy, shadow, handover, cutover or complete")
	}
	return st, nil
}

// detailed adds an answer to an error. One that cannot be added is in the message all the same.
func detailed(err *connect.Error, m proto.Message) error {
	if d, detailErr := connect.NewErrorDetail(m); detailErr == nil {
		err.AddDetail(d)
	}
	return err
}

// messageOf gives an error's text without its code.
func messageOf(err error) string {
	if ce := new(connect.Error); errors.As(err, &ce) {
		return ce.Message()
	}
	return err.Error()
}

func count(n int) *int32 {
	v := int32(min(max(n, 0), math.MaxInt32)) //nolint:gosec // just bounded
	return &v
}

func debtAnswer(d *reservation.Debt) *twinholdv1.Debt {
	if d == nil {
		return nil
	}
	return &twinholdv1.Debt{Reservations: &d.Reservations, Units: &d.Units, DrainsInS: &d.DrainsInS}
}

func statusOf(s killswitch.Status) *twinholdv1.PodStatus {
	ans := &twinholdv1.PodStatus{
		Pod: s.Pod, Stage: s.Stage, Epoch: s.Epoch, Truth: s.Truth, Killed: s.Killed, Latch: s.Latch, Frozen: s.Frozen,
		FrozenBuckets: s.FrozenBuckets, Debt: debtAnswer(s.Debt), ViewComplete: s.ViewComplete, Queue: waiting(s.Queue),
		Breaker: s.Breaker, HeldBecause: s.HeldBecause, Laggards: s.Laggards, Declared: s.Declared, MaxStage: s.MaxStage,
		Suspect: s.Suspect, Incarnation: s.Incarnation, IncarnationEpoch: s.IncarnationEpoch, Marks: s.Marks,
		Redis: storeAnswer(s.Redis), Mysql: storeAnswer(s.MySQL),
	}
	for _, r := range s.Routers {
		ans.Routers = append(ans.Routers, &twinholdv1.RouterStatus{
			Id: r.ID, Epoch: &r.Epoch, Stage: r.Stage, SeenSAgo: &r.SeenSAgo, Cut: &r.Cut,
			Queue: proto.Int64(int64(r.Queue)), Breaker: r.Breaker, Skipped: &r.Skipped,
		})
	}
	return ans
}

func storeAnswer(s killswitch.StoreStatus) *twinholdv1.StoreStatus {
	ans := &twinholdv1.StoreStatus{Epoch: s.Epoch, Error: s.Error}
	if s.Stage != nil {
		ans.Stage = *s.Stage
	}
	return ans
}

// waiting keeps what is not known unknown.
func waiting(n *int) *int64 {
	if n == nil {
		return nil
	}
	return proto.Int64(int64(*n))
}

func gatesAnswer(gates []killswitch.Gate) []*twinholdv1.Gate {
	var ans []*twinholdv1.Gate
	for _, g := range gates {
		ans = append(ans, &twinholdv1.Gate{
			Name: g.Name, Verdict: string(g.Verdict), Figure: g.Figure, Reason: g.Reason,
			Waivable: &g.Waivable, Waived: &g.Waived, Awaited: &g.Awaited,
		})
	}
	return ans
}

func planAnswer(p killswitch.Plan) *twinholdv1.FlipResponse {
	ans := &twinholdv1.FlipResponse{
		Pod: p.Pod, From: p.From, To: p.To, Stage: p.From, Epoch: &p.Epoch, Ready: proto.Bool(p.Go()), Done: proto.Bool(false),
		Unfinished: p.Unfinished, Refused: p.Refused,
	}
	for _, s := range p.Steps {
		ans.Steps = append(ans.Steps, stepAnswer(s))
	}
	return ans
}

func stepAnswer(s killswitch.Step) *twinholdv1.FlipStep {
	return &twinholdv1.FlipStep{From: s.From, To: s.To, Gates: gatesAnswer(s.Gates), Does: s.Does}
}

func flipAnswer(r killswitch.FlipResult, to reservation.Stage) *twinholdv1.FlipResponse {
	ans := &twinholdv1.FlipResponse{
		Pod: r.Pod, From: r.From, To: to.String(), Stage: r.Stage, Epoch: &r.Epoch,
		Ready: proto.Bool(true), Done: proto.Bool(r.Stage == to.String()), Notes: r.Notes,
	}
	for _, m := range r.Moves {
		s := stepAnswer(m.Step)
		s.Epoch, s.Waived, s.Replicas = &m.Epoch, m.Waived, replicasAnswer(m.Replicas)
		s.Acks, s.Routers, s.Laggards = count(m.Acks), count(m.Routers), m.Laggards
		ans.Steps = append(ans.Steps, s)
	}
	return ans
}

func replicasAnswer(r killswitch.Replicas) *twinholdv1.Replicas {
	return &twinholdv1.Replicas{Reached: count(r.Reached), Connected: count(r.Connected)}
}

func killAnswer(r killswitch.KillResult) *twinholdv1.PodKill {
	return &twinholdv1.PodKill{
		Pod: r.Pod, Epoch: &r.Epoch, Stage: r.Stage, Before: r.Before, Already: &r.Already, Acks: count(r.Acks), Routers: count(r.Routers),
		Laggards: r.Laggards, Debt: debtAnswer(r.Debt), Marks: r.Marks, TookMs: &r.TookMS, AckedMs: r.AckedMS, Mysql: &r.MySQL,
		Replicas: replicasAnswer(r.Replicas),
	}
}

func rearmAnswer(r killswitch.RearmResult) *twinholdv1.RearmResponse {
	ready := true
	for _, g := range r.Gates {
		ready = ready && g.Open()
	}
	return &twinholdv1.RearmResponse{
		Pod: r.Pod, Epoch: &r.Epoch, Stage: r.Stage, Killed: &r.Killed, Latch: r.Latch, Gates: gatesAnswer(r.Gates), Ready: &ready, Done: &r.Done,
	}
}

func drillAnswer(r killswitch.DrillResult) *twinholdv1.DrillResponse {
	return &twinholdv1.DrillResponse{
		Pod: r.Pod, Before: r.Before, Stage: r.Stage, KillEpoch: &r.KillEpoch, Epoch: &r.Epoch, Acks: count(r.Acks), Routers: count(r.Routers),
		Laggards: r.Laggards, KillMs: &r.KillMS, AckedMs: &r.AckedMS, RearmMs: &r.RearmMS, Notes: r.Notes,
	}
}

func brakeAnswer(r killswitch.FreezeResult) *twinholdv1.Brake {
	ans := &twinholdv1.Brake{Pod: r.Pod, Bucket: r.Bucket, Frozen: &r.Frozen, Reached: r.Reached}
	for _, m := range r.Missed {
		ans.Missed = append(ans.Missed, &twinholdv1.MissedStore{Store: m.Store, Error: m.Error})
	}
	return ans
}

func auditAnswer(r reservation.AuditRecord) *twinholdv1.AuditRecord {
	ans := &twinholdv1.AuditRecord{
		At: instant(r.At), Pod: r.Pod, Action: r.Action, By: r.By, Reason: r.Reason, Ticket: r.Ticket,
		EpochBefore: &r.Before.Epoch, EpochAfter: &r.After.Epoch, Waived: r.Waived, Debt: debtAnswer(r.Debt), Detail: r.Detail, Store: r.Store,
	}
	if r.Before.Stage.Valid() {
		ans.StageBefore = r.Before.Stage.String()
	}
	if r.After.Stage.Valid() {
		ans.StageAfter = r.After.Stage.String()
	}
	return ans
}
