package server

import (
	"math"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	twinholdv1 "github.com/twinhold/twinhold/api/twinhold/v1"
	"github.com/twinhold/twinhold/reservation"
)

// ttlOf gives the asked TTL, 0 where it was left out. One that was sent as zero is a mistake, not the default.
func ttlOf(m *twinholdv1.ReserveRequest) (time.Duration, error) {
	d := m.GetTtl()
	if d == nil {
		return 0, nil
	}
	if err := d.CheckValid(); err != nil {
		return 0, &reservation.InvalidError{Field: "ttl", Reason: "is no duration: write seconds, as in \"600s\""}
	}
	ttl := d.AsDuration()
	if ttl <= 0 {
		return 0, &reservation.InvalidError{Field: "ttl", Reason: ttl.String() + " is too short: leave it out for the default"}
	}
	return ttl, nil
}

func linesOf(lines []*twinholdv1.Line) []reservation.Line {
	out := make([]reservation.Line, len(lines))
	for i, l := range lines {
		out[i] = reservation.Line{Item: l.GetItemId(), Group: l.GetGroupId(), Quantity: int64(l.GetQuantity())}
	}
	return out
}

// idOf reads the id of a request that has a shop and one.
func idOf(m interface {
	GetShopId() int64
	GetReservationId() string
},
) (reservation.ID, error) {
	if err := (reservation.Bucket{Shop: m.GetShopId(), Item: 1, Group: 1}).Validate(); err != nil {
		return reservation.ID{}, err
	}
	return reservation.ParseID(m.GetReservationId())
}

func bucketOf(m interface {
	GetShopId() int64
	GetItemId() int64
	GetGroupId() int64
},
) reservation.Bucket {
	return reservation.Bucket{Shop: m.GetShopId(), Item: m.GetItemId(), Group: m.GetGroupId()}
}

func reserveAnswer(res reservation.Result) *twinholdv1.ReserveResponse {
	rec := res.Record
	ans := &twinholdv1.ReserveResponse{
		ReservationId: rec.ID.String(), Outcome: outcomeOf(rec.Outcome), State: stateOf(rec.State), ExpiresAt: instant(rec.ExpiresAt),
		DecidedBy: rec.DecidedBy.String(), Epoch: rec.Epoch, Replayed: &res.Replayed,
	}
	for _, s := range rec.Shortages {
		available := narrow(s.Available)
		ans.Shortages = append(ans.Shortages, &twinholdv1.Shortage{
			ItemId: s.Item, GroupId: s.Group, Requested: narrow(s.Requested), Available: &available,
		})
	}
	return ans
}

func recordAnswer(rec reservation.Record) *twinholdv1.GetReservationResponse {
	ans := &twinholdv1.GetReservationResponse{
		ReservationId: rec.ID.String(), State: stateOf(rec.State), ExpiresAt: instant(rec.ExpiresAt),
		DecidedBy: rec.DecidedBy.String(), Epoch: rec.Epoch,
	}
	for _, l := range rec.Lines {
		ans.Lines = append(ans.Lines, &twinholdv1.Line{ItemId: l.Item, GroupId: l.Group, Quantity: narrow(l.Quantity)})
	}
	return ans
}

// historyAnswer gives the time of each step that was taken.
func historyAnswer(rec reservation.Record) map[string]*timestamppb.Timestamp {
	ended := "claimed"
	if rec.State == reservation.Refused {
		ended = "refund_required"
	}
	steps := map[string]*timestamppb.Timestamp{}
	for step, at := range map[string]time.Time{
		"created": rec.CreatedAt, "pinned": rec.PinnedAt, "released": rec.ReleasedAt, "expired": rec.ExpiredAt, ended: rec.ClaimedAt,
	} {
		if !at.IsZero() {
			steps[step] = timestamppb.New(at)
		}
	}
	return steps
}

func instant(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// narrow is for figures that a request of at most 2^31-1 bounds above: what was asked, and what was short of it.
func narrow(n int64) int32 {
	return int32(min(max(n, math.MinInt32), math.MaxInt32)) //nolint:gosec // just bounded
}

func outcomeOf(d reservation.Decision) twinholdv1.ReserveResponse_Outcome {
	switch d {
	case reservation.Granted:
		return twinholdv1.ReserveResponse_GRANTED
	case reservation.RejectedShort:
		return twinholdv1.ReserveResponse_REJECTED
	default:
		return twinholdv1.ReserveResponse_OUTCOME_UNSPECIFIED
	}
}

func stateOf(s reservation.State) twinholdv1.State {
	switch s {
	case reservation.Provisional:
		return twinholdv1.State_PROVISIONAL
	case reservation.Held:
		return twinholdv1.State_HELD
	case reservation.Claiming:
		return twinholdv1.State_CLAIMING
	case reservation.Rejected:
		return twinholdv1.State_REJECTED
	case reservation.Expired:
		return twinholdv1.State_EXPIRED
	case reservation.Refused:
		return twinholdv1.State_REFUND_REQUIRED
	case reservation.Released:
		return twinholdv1.State_RELEASED
	case reservation.Claimed:
		return twinholdv1.State_CLAIMED
	default:
		return twinholdv1.State_STATE_UNSPECIFIED
	}
}
