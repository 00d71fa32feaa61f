package podset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/reservation"
)

// Progress is how far the pod's full rounds of catch-up are. It is kept in the pod's Redis, so that another router goes
// on where one has stopped. Its times are MySQL's, since routers' clocks may be off.
type Progress struct {
	// Began is when the round under way did; zero: there is none. It has walked so many of about Of reservations, up to After.
	Began    time.Time      `json:"began,omitzero"`
	After    reservation.ID `json:"after"`
	Walked   int64          `json:"walked"`
	Of       int64          `json:"of"`
	Repaired int64          `json:"repaired"`
	// The same of the last one that came to its end.
	LastBegan    time.Time `json:"last_began,omitzero"`
	LastEnded    time.Time `json:"last_ended,omitzero"`
	LastWalked   int64     `json:"last_walked"`
	LastRepaired int64     `json:"last_repaired"`
}

// end makes the round under way the last one.
func (at *Progress) end(now time.Time) {
	*at = Progress{LastBegan: at.Began, LastEnded: now, LastWalked: at.Walked, LastRepaired: at.Repaired}
}

// The keys of catch-up in the pod's Redis: the lease, that of handover's rounds, how far the full round is, and how far
// the quick turns are.
func (p *Pod) catchUpKey() string  { return "{" + p.Config.ID + "}:catchup" }
func (p *Pod) handoverKey() string { return p.catchUpKey() + ":handover" }
func (p *Pod) progressKey() string { return p.catchUpKey() + ":round" }
func (p *Pod) cursorKey() string   { return p.catchUpKey() + ":cursor" }

// catchUpLease is how long a router that is not heard of keeps the catch-up from the others, beside two of its turns.
const catchUpLease = 5 * time.Second

// holdsCatchUp takes the lease of the pod's catch-up, or renews it.
func (p *Pod) holdsCatchUp(ctx context.Context) (mine bool, err error) {
	defer func() { p.holds.Store(mine) }()
	lease := catchUpLease + 2*p.cfg.Load().Tuning.CatchUpTurn
	mine, err = p.client.SetNX(ctx, p.catchUpKey(), p.name, lease).Result()
	if err != nil || mine {
		return mine, err
	}
	holder, err := p.client.Get(ctx, p.catchUpKey()).Result()
	if errors.Is(err, redis.Nil) {
		return false, nil // it ran out just now: the next turn takes it
	}
	if err != nil {
		return false, err
	}
	if holder != p.name {
		return false, p.bound(ctx, lease)
	}
	return true, p.client.PExpire(ctx, p.catchUpKey(), lease).Err()
}

// bound gives the lease an end where it has none: somebody has written the key by hand, and would hold it for ever.
func (p *Pod) bound(ctx context.Context, lease time.Duration) error {
	left, err := p.client.PTTL(ctx, p.catchUpKey()).Result()
	if err != nil || left >= 0 {
		return err
	}
	return p.client.PExpire(ctx, p.catchUpKey(), lease).Err()
}

// endCatchUp lets another router go on at once.
func (p *Pod) endCatchUp() {
	if !p.holds.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaseTimeout)
	defer cancel()
	if holder, err := p.client.Get(ctx, p.catchUpKey()).Result(); err == nil && holder == p.name {
		_ = p.client.Del(ctx, p.catchUpKey()).Err() // it runs out by itself too
	}
}

// begin begins a round. How many reservations there are is only told.
func (p *Pod) begin(ctx context.Context, at *Progress) (err error) {
	at.Began, at.After, at.Walked, at.Repaired = p.storeNow().UTC(), reservation.ID{}, 0, 0
	at.Of, err = p.client.ZCard(ctx, "{"+p.Config.ID+"}:created").Result()
	return err
}

// CatchUpProgress tells how far the pod's full round is, and which router runs it; empty: none.
func (p *Pod) CatchUpProgress(ctx context.Context) (at Progress, holder string, err error) {
	if at, err = p.progress(ctx); err != nil {
		return at, "", err
	}
	holder, err = p.client.Get(ctx, p.catchUpKey()).Result()
	if errors.Is(err, redis.Nil) {
		err = nil
	}
	return at, holder, err
}

func (p *Pod) progress(ctx context.Context) (at Progress, err error) {
	text, err := p.client.Get(ctx, p.progressKey()).Result()
	if err != nil {
		return at, none(err)
	}
	if err := json.Unmarshal([]byte(text), &at); err != nil {
		return Progress{}, nil //nolint:nilerr // what cannot be read is begun anew
	}
	return at, nil
}

func (p *Pod) keepProgress(ctx context.Context, at Progress) error {
	text, err := json.Marshal(at)
	if err == nil {
		err = p.client.Set(ctx, p.progressKey(), text, 0).Err()
	}
	if err != nil {
		return fmt.Errorf("keep the progress of catch-up: %w", err)
	}
	return nil
}

// cursor is how far the quick turns have walked what is new; the zero id: nobody has begun.
func (p *Pod) cursor(ctx context.Context) (reservation.ID, error) {
	text, err := p.client.Get(ctx, p.cursorKey()).Result()
	if err != nil {
		return reservation.ID{}, none(err)
	}
	id, err := reservation.ParseID(text)
	if err != nil {
		return reservation.ID{}, nil //nolint:nilerr // what cannot be read is begun anew
	}
	return id, nil
}

func (p *Pod) keepCursor(ctx context.Context, at reservation.ID) error {
	return p.client.Set(ctx, p.cursorKey(), at.String(), 0).Err()
}

// none makes nothing of a key that is not there.
func none(err error) error {
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}
