package killswitch

import (
	"context"
	"errors"
	"fmt"

	"github.com/twinhold/twinhold/reservation"
)

// Freeze sets the brake of the pod (zero bucket) or of one bucket, or lifts it: no new reservations; claims, releases
// and reads go on. It is set in Redis first, then in MySQL. One store is enough for what that store decides, and the
// result says which it reached. It is an error only if it reached none.
func (c *Control) Freeze(ctx context.Context, b reservation.Bucket, on bool, reason, ticket string) (FreezeResult, error) {
	return c.setBrake(ctx, b, on, reason, ticket, "")
}

// FreezeWith freezes a bucket, and keeps what is known of the cause whole in the audit.
func (c *Control) FreezeWith(ctx context.Context, b reservation.Bucket, reason, evidence string) (FreezeResult, error) {
	return c.setBrake(ctx, b, true, reason, "", evidence)
}

func (c *Control) setBrake(ctx context.Context, b reservation.Bucket, on bool, reason, ticket, evidence string) (FreezeResult, error) {
	action, res := reservation.ActionFreeze, FreezeResult{Pod: c.opt.Pod, Frozen: on, Reached: []string{}}
	if !on {
		action = reservation.ActionUnfreeze
	}
	if b != (reservation.Bucket{}) {
		if err := b.Validate(); err != nil {
			return res, err
		}
		res.Bucket = b.String()
		if err := c.checkBucket(ctx, b, on, &res); err != nil {
			return res, err
		}
	}
	a := c.audit(action, reason, ticket)
	if res.Bucket != "" {
		a.Detail = bucketDetail + res.Bucket
	}
	if evidence != "" {
		a.Detail += evidenceDetail + evidence
	}
	c.opt.Failpoint("before_freeze")
	rerr := bounded(ctx, func(ctx context.Context) error {
		_, err := c.opt.Redis.Freeze(ctx, b, on, a)
		return err
	})
	rerr = plain(action, rerr)
	res.note(reservation.Redis, rerr)
	c.opt.Failpoint("frozen_redis")
	merr := bounded(ctx, func(ctx context.Context) error {
		_, err := c.opt.MySQL.Freeze(ctx, b, on, a)
		return err
	})
	merr = plain(action, merr)
	res.note(reservation.MySQL, merr)
	c.opt.Failpoint("frozen_mysql")
	if len(res.Reached) == 0 {
		return res, fmt.Errorf("%s of pod %s reached no store: %w", action, c.opt.Pod, errors.Join(rerr, merr))
	}
	return res, nil
}

// A brake's record says which bucket it is of, and what is known of the cause.
const (
	bucketDetail   = "bucket "
	evidenceDetail = "; evidence "
)

// checkBucket refuses the brake of a bucket that is not the pod's. One that cannot be looked at is frozen all the same.
func (c *Control) checkBucket(ctx context.Context, b reservation.Bucket, on bool, res *FreezeResult) error {
	if c.opt.Bucket == nil || !on {
		return nil
	}
	err := bounded(ctx, func(ctx context.Context) error { return c.opt.Bucket(ctx, b) })
	var invalid *reservation.InvalidError
	var unknown *reservation.UnknownBucketError
	switch {
	case errors.As(err, &invalid), errors.As(err, &unknown):
		return fmt.Errorf("nothing was frozen: %w", err)
	case err != nil:
		res.Notes = append(res.Notes, fmt.Sprintf("whether the pod has this bucket could not be found out: %v", err))
	}
	return nil
}

func bounded(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, changeWait)
	defer cancel()
	return f(ctx)
}

func (r *FreezeResult) note(store reservation.Truth, err error) {
	if err == nil {
		r.Reached = append(r.Reached, store.String())
		return
	}
	r.Missed = append(r.Missed, MissedStore{Store: store.String(), Error: err.Error()})
}
