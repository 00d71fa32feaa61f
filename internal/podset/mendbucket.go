package podset

import (
	"context"
	"errors"

	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/shadow"
)

// counted is a bucket whose figures did not move while its live reservations were summed.
type counted struct {
	ledger reservation.Figures
	redis  reservation.Availability
	live   shadow.Held
	pins   int // claims and changes of stock that are under way in the pod
}

// planBucket says what would be written of a bucket's counters in Redis.
func (m *mending) planBucket(ctx context.Context) error {
	b := m.order.Bucket
	m.buckets = []reservation.Bucket{b}
	m.res.Evidence.Buckets = []BucketView{m.p.figuresOf(ctx, b)}
	if m.order.From == reservation.Redis {
		m.refuse("the ledger is the stock, and is never written from Redis's counters: twinhold reconcile %s says how MySQL is mended; or --from mysql", m.p.Config.ID)
		return nil
	}
	is, err := m.count(ctx)
	if errors.Is(err, errMoved) {
		m.refuse("%v (twinhold freeze %s --bucket %s --reason R), then run it again", err, m.p.Config.ID, b)
		return nil
	}
	if err != nil {
		return err
	}
	m.look = func(ctx context.Context) (string, error) {
		now, err := m.count(ctx)
		if err != nil {
			return "", err
		}
		d, _ := shadow.CheckBucket(now.ledger, now.redis, &now.live)
		return d.What, nil
	}
	d, differs := shadow.CheckBucket(is.ledger, is.redis, &is.live)
	switch {
	case !differs:
		return nil
	case is.live.Pinned:
		m.refuse("a claim of this bucket is under way: run it again in a moment")
		return nil
	case is.pins > 0:
		m.refuse("%d claims or changes of stock are under way in the pod: run it again in a moment", is.pins)
		return nil
	case is.redis.Version > is.ledger.Version:
		m.refuse("Redis has version %d of the ledger, which is at %d: MySQL has lost writes, and Redis's figures are not mended from it", is.redis.Version, is.ledger.Version)
		return nil
	}
	m.res.Evidence.Kind, m.res.Evidence.What = string(d.Kind), d.What
	after := is.ledger.OnHand - is.live.Units
	for _, f := range []struct {
		name     string
		was, now int64
	}{
		{"available", is.redis.Available, after}, {"held", is.redis.Held, is.live.Units}, {"on_hand", is.redis.OnHand, is.ledger.OnHand},
	} {
		if f.was != f.now {
			m.would("%s %d becomes %d in Redis", f.name, f.was, f.now)
		}
	}
	if after < 0 {
		m.warn("bucket %s: %d units are promised that are not there: that stays so, and shows", b, -after)
	}
	m.write = func(ctx context.Context, a reservation.AuditRecord) (int64, bool, error) {
		done, err := m.p.Redis.MendBucket(ctx, m.fence.Stamp, is.redis, is.ledger, is.live.Units, a)
		return 0, done, err
	}
	return nil
}

// count sums what Redis's live reservations hold of the bucket. It is errMoved where its figures moved meanwhile, or a
// change of stock is under way.
func (m *mending) count(ctx context.Context) (counted, error) {
	b := m.order.Bucket
	before, err := m.p.Redis.Availability(ctx, b)
	if err != nil {
		return counted{}, err
	}
	pins, err := m.p.Redis.Pins(ctx)
	if err != nil {
		return counted{}, err
	}
	ledger, err := m.p.MySQL.Availability(ctx, b)
	if err != nil {
		return counted{}, err
	}
	live := shadow.Live{}
	for after := (reservation.ID{}); ; {
		recs, err := m.p.Redis.Walk(ctx, after, countPage)
		if err != nil {
			return counted{}, err
		}
		if len(recs) == 0 {
			break
		}
		for i := range recs {
			live.Count(&recs[i])
		}
		after = recs[len(recs)-1].ID
	}
	again, err := m.p.Redis.Availability(ctx, b)
	switch {
	case err != nil:
		return counted{}, err
	case again != before:
		return counted{}, errMoved
	}
	return counted{
		ledger: reservation.Figures{Bucket: b, OnHand: ledger.OnHand, Version: ledger.Version}, redis: before, live: live[b], pins: pins,
	}, nil
}

const countPage = 1000
