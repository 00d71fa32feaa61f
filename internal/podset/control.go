package podset

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twinhold/twinhold/killswitch"
	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/shadow"
)

// ControlOptions go with a pod's kill switch.
type ControlOptions struct {
	// By is who uses it, for the audit; empty: the user of the operating system.
	By string
	// Version is this program's, for the audit of drills.
	Version string
	// Health gives what a doctor would fail the stores for; nil: only that they answer and agree.
	Health func(ctx context.Context) ([]string, error)
}

// Control makes the pod's kill switch. It asks no store anything.
func (p *Pod) Control(opt ControlOptions) (*killswitch.Control, error) {
	cfg := p.cfg.Load()
	settle, maxStage := cfg.Tuning.Settle, p.Config.MaxStage
	if pc, ok := cfg.Pod(p.Config.ID); ok {
		maxStage = pc.MaxStage
	}
	return killswitch.New(killswitch.Options{
		Pod: p.Config.ID, Redis: p.Redis, MySQL: p.MySQL, Declared: p.Config.DeclaredStage(), MaxStage: maxStage,
		Cooldown: cfg.Defaults.Cooldown, LongestTTL: cfg.Defaults.MaxTTL, Poll: cfg.Defaults.Poll, By: opt.By, Version: opt.Version, Health: opt.Health,
		Bounds: killswitch.Bounds{
			MinCompared: int64(cfg.Gates.MinCompared), LatencyRatio: cfg.Gates.MaxLatencyRatio, MaxQueue: cfg.Gates.MaxQueue,
		},
		CatchUp: func(ctx context.Context) error {
			_, err := p.Backlog(ctx, settle)
			return err
		},
		Rounds: p.roundsStatus,
		Survey: func(ctx context.Context, rf, mf reservation.Fence) (killswitch.Survey, error) {
			c, err := p.catchUp(settle, false)
			if err != nil {
				return killswitch.Survey{}, err
			}
			s, err := c.Survey(ctx, rf, mf)
			return killswitch.SurveyOf(s), err
		},
		Evidence: func(ctx context.Context) (killswitch.Evidence, error) {
			return p.evidence(ctx, cfg.Gates.EvidenceWindow)
		},
		Bucket: p.hasBucket,
		Reseed: p.reseed,
		Logger: p.log,
	})
}

// roundsStatus tells how far the full rounds of catch-up are.
func (p *Pod) roundsStatus(ctx context.Context) (killswitch.CatchUpStatus, error) {
	at, router, err := p.CatchUpProgress(ctx)
	s := killswitch.CatchUpStatus{Router: router, Walked: at.Walked, Of: at.Of, LastWalked: at.LastWalked, LastRepaired: at.LastRepaired}
	if !at.Began.IsZero() {
		s.Began = &at.Began
	}
	if !at.LastEnded.IsZero() {
		s.LastEnded, s.LastTookS = &at.LastEnded, at.LastEnded.Sub(at.LastBegan).Seconds()
	}
	return s, err
}

// hasBucket tells whether a bucket is the pod's, and was ever stocked: one store that knows it is enough.
func (p *Pod) hasBucket(ctx context.Context, b reservation.Bucket) error {
	if of, ok := p.cfg.Load().PodOf(b.Shop); !ok || of.ID != p.Config.ID {
		return &reservation.InvalidError{Field: "bucket", Reason: fmt.Sprintf("%s is of shop %d, which is not one of pod %s", b, b.Shop, p.Config.ID)}
	}
	answers := make(chan error, 2)
	go func() {
		_, err := p.Redis.Availability(ctx, b)
		answers <- err
	}()
	go func() {
		_, err := p.MySQL.Availability(ctx, b)
		answers <- err
	}()
	first := <-answers
	if first == nil {
		return nil
	}
	second := <-answers
	var unknown *reservation.UnknownBucketError
	if second == nil || !errors.As(first, &unknown) {
		return second
	}
	return first
}

// reseed rebuilds Redis from MySQL from nothing.
func (p *Pod) reseed(ctx context.Context, to reservation.Stamp, a reservation.AuditRecord) (string, error) {
	res, err := shadow.Restore(ctx, shadow.RestoreOptions{
		Pod: p.Config.ID, Redis: p.Redis, MySQL: p.MySQL, Wipe: true, To: to, By: a.By, Reason: a.Reason, Ticket: a.Ticket, Logger: p.log,
	})
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf("Redis has %d reservations in %d buckets from MySQL, incarnation %d, in %v",
		res.Records, res.Buckets, res.After.Incarnation, res.Took.Round(time.Millisecond))
	return strings.Join(append([]string{text}, res.Unknown...), "; "), nil
}

// evidence sums what the comparison of the two stores has found.
func (p *Pod) evidence(ctx context.Context, window time.Duration) (killswitch.Evidence, error) {
	s, err := p.Tallies.Sum(ctx, window)
	return killswitch.Evidence{
		Since: time.Now().Add(-window), Compared: s.Compared, Unexplained: s.Unexplained, Gaps: s.GapTotal(),
		Redis: killswitch.Latency{P50: s.RedisMS.P50, P99: s.RedisMS.P99},
		MySQL: killswitch.Latency{P50: s.MySQLMS.P50, P99: s.MySQLMS.P99},
	}, err
}
