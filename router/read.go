package router

import (
	"context"
	"errors"

	"github.com/twinhold/twinhold/reservation"
)

// Get reads a reservation from the truth.
func (p *Pod) Get(ctx context.Context, shop int64, id reservation.ID) (reservation.Record, error) {
	st := p.Stamp()
	rec, err := p.truth().Get(ctx, shop, id)
	if again := p.said(ctx, st, err); errors.Is(again, errAgain) {
		st = p.Stamp()
		rec, err = p.truth().Get(ctx, shop, id)
	}
	if !errors.Is(err, reservation.ErrNotFound) || !p.marksMayMatter(st) {
		return rec, err
	}
	if err := p.bring(ctx, st, shop, id); err != nil && !errors.Is(err, errAgain) && !stale(err) {
		return rec, err
	}
	return p.truth().Get(ctx, shop, id)
}

// Availability reads a bucket's figures from the truth.
func (p *Pod) Availability(ctx context.Context, b reservation.Bucket) (reservation.Availability, error) {
	return p.truth().Availability(ctx, b)
}
