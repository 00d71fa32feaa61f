package server

import (
	"context"
	"time"

	"connectrpc.com/connect"

	twinholdv1 "github.com/twinhold/twinhold/api/twinhold/v1"
	"github.com/twinhold/twinhold/api/twinhold/v1/twinholdv1connect"
	"github.com/twinhold/twinhold/reservation"
)

// Router is what the data API asks; *router.Router is one.
type Router interface {
	Reserve(ctx context.Context, shop int64, key string, lines []reservation.Line, ttl time.Duration) (reservation.Result, error)
	Claim(ctx context.Context, shop int64, id reservation.ID) (reservation.ClaimResult, error)
	Release(ctx context.Context, shop int64, id reservation.ID) (reservation.ReleaseResult, error)
	Adjust(ctx context.Context, adj reservation.Adjustment) (reservation.AdjustResult, error)
	Get(ctx context.Context, shop int64, id reservation.ID) (reservation.Record, error)
	Availability(ctx context.Context, b reservation.Bucket) (reservation.Availability, error)
}

// handlers are the calls of the data API.
type handlers struct{ router Router }

var _ twinholdv1connect.ReservationServiceHandler = (*handlers)(nil)

// Reserve places a hold.
func (h *handlers) Reserve(ctx context.Context, req *connect.Request[twinholdv1.ReserveRequest]) (*connect.Response[twinholdv1.ReserveResponse], error) {
	m := req.Msg
	ttl, err := ttlOf(m)
	if err != nil {
		return nil, fail(err)
	}
	res, err := h.router.Reserve(ctx, m.GetShopId(), m.GetIdempotencyKey(), linesOf(m.GetLines()), ttl)
	if err != nil {
		return nil, fail(err)
	}
	return connect.NewResponse(reserveAnswer(res)), nil
}

// Claim makes a hold's deduction permanent.
func (h *handlers) Claim(ctx context.Context, req *connect.Request[twinholdv1.ClaimRequest]) (*connect.Response[twinholdv1.ClaimResponse], error) {
	id, err := idOf(req.Msg)
	if err != nil {
		return nil, fail(err)
	}
	res, err := h.router.Claim(ctx, req.Msg.GetShopId(), id)
	if err != nil {
		return nil, fail(err)
	}
	return connect.NewResponse(&twinholdv1.ClaimResponse{State: stateOf(res.Record.State), Late: &res.Late}), nil
}

// Release gives a hold up.
func (h *handlers) Release(ctx context.Context, req *connect.Request[twinholdv1.ReleaseRequest]) (*connect.Response[twinholdv1.ReleaseResponse], error) {
	id, err := idOf(req.Msg)
	if err != nil {
		return nil, fail(err)
	}
	res, err := h.router.Release(ctx, req.Msg.GetShopId(), id)
	if err != nil {
		return nil, fail(err)
	}
	return connect.NewResponse(&twinholdv1.ReleaseResponse{
		ReservationId: res.Record.ID.String(), State: stateOf(res.Record.State), Replayed: &res.Replayed,
	}), nil
}

// GetReservation reads a reservation.
func (h *handlers) GetReservation(ctx context.Context, req *connect.Request[twinholdv1.GetReservationRequest]) (*connect.Response[twinholdv1.GetReservationResponse], error) {
	id, err := idOf(req.Msg)
	if err != nil {
		return nil, fail(err)
	}
	rec, err := h.router.Get(ctx, req.Msg.GetShopId(), id)
	if err != nil {
		return nil, fail(err)
	}
	ans := recordAnswer(rec)
	if req.Msg.GetWithHistory() {
		ans.History = historyAnswer(rec)
	}
	return connect.NewResponse(ans), nil
}

// AdjustStock receives stock or writes it off.
func (h *handlers) AdjustStock(ctx context.Context, req *connect.Request[twinholdv1.AdjustStockRequest]) (*connect.Response[twinholdv1.AdjustStockResponse], error) {
	adj := reservation.Adjustment{ID: req.Msg.GetAdjustmentId(), Bucket: bucketOf(req.Msg), Delta: req.Msg.GetDelta(), Force: req.Msg.GetForce()}
	res, err := h.router.Adjust(ctx, adj)
	if err != nil {
		return nil, fail(err)
	}
	return connect.NewResponse(&twinholdv1.AdjustStockResponse{OnHand: &res.Figures.OnHand, Replayed: &res.Replayed}), nil
}

// GetAvailability reads a bucket's figures.
func (h *handlers) GetAvailability(ctx context.Context, req *connect.Request[twinholdv1.GetAvailabilityRequest]) (*connect.Response[twinholdv1.GetAvailabilityResponse], error) {
	b := bucketOf(req.Msg)
	if err := b.Validate(); err != nil {
		return nil, fail(err)
	}
	av, err := h.router.Availability(ctx, b)
	if err != nil {
		return nil, fail(err)
	}
	return connect.NewResponse(&twinholdv1.GetAvailabilityResponse{
		Available: &av.Available, Held: &av.Held, OnHand: &av.OnHand, Truth: av.Truth.String(),
	}), nil
}
