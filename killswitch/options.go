package killswitch

import (
	"context"
	"errors"
	"log/slog"
	"os/user"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// MySQL is what the kill switch asks of a pod's MySQL.
type MySQL interface {
	reservation.MySQLFence
	reservation.Marks
}

// Survey is how complete each store's view of the other is, as catch-up finds it without writing anything.
type Survey struct {
	// Complete: the view is complete (DESIGN section 3, gate complete). Because says what it still lacks.
	Complete bool
	Because  []string
	// Debt is what one store promised and the other lacks.
	Debt reservation.Debt
	// Differ counts records whose outcomes differ between the stores: final states, rejections.
	Differ int64
	// Waiting counts MySQL holds that nobody was promised: each is left to its retry or its expiry.
	Waiting int64
	// ShortBuckets have promised more than they hold (unpooled below zero).
	ShortBuckets []reservation.Bucket
}

// Latency is a distribution's two figures, in milliseconds.
type Latency struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// Evidence is what the comparison of the two stores has found.
type Evidence struct {
	Since       time.Time `json:"since"`
	Compared    int64     `json:"compared"`
	Unexplained int64     `json:"unexplained"`
	Gaps        int64     `json:"gaps"`
	Redis       Latency   `json:"redis"`
	MySQL       Latency   `json:"mysql"`
}

// PoolDepth is how full the unit pools are.
type PoolDepth struct {
	Buckets int64 // that were looked at
	Short   []reservation.Bucket
}

// Bounds are the figures at which gates open.
type Bounds struct {
	// MinCompared is the least number of compared operations that are evidence. Default 1000.
	MinCompared int64
	// LatencyRatio is how many times Redis's p99 MySQL's may be; below LatencyFloor it passes in any case. Defaults 3, 50 ms.
	LatencyRatio float64
	LatencyFloor time.Duration
	// MaxQueue is the longest mirror queue of any router. Default 100.
	MaxQueue int
}

// Options are one pod's parts.
type Options struct {
	Pod   string
	Redis reservation.RedisFence
	MySQL MySQL
	// Declared is the stage that the configuration declares; zero: not known. It is only shown.
	Declared reservation.Stage
	// MaxStage is the stage that a flip never goes beyond. Default cutover.
	MaxStage reservation.Stage
	// Cooldown is the least time between a kill and its rearm, or the next move forward.
	Cooldown time.Duration
	// LongestTTL is the longest that a reservation may live: how long a flip may have to wait for the last of them.
	LongestTTL time.Duration
	// Poll is how often a router reads the fence. Default 200 ms.
	Poll time.Duration
	// By is who does it, for the audit. Default the user of the operating system.
	By string
	// Version is this program's, for the audit of drills.
	Version string
	Bounds  Bounds

	// CatchUp runs one full round both ways. Nil: none.
	CatchUp func(ctx context.Context) error
	// Survey looks and changes nothing. Nil: debt and completeness stay inconclusive.
	Survey func(ctx context.Context) (Survey, error)
	// Evidence sums what was compared. Nil: inconclusive.
	Evidence func(ctx context.Context) (Evidence, error)
	// Pool gives the pools' depth. Nil: the survey's short buckets.
	Pool func(ctx context.Context) (PoolDepth, error)
	// Health gives what a doctor would fail the stores for. Nil: only that they answer and agree.
	Health func(ctx context.Context) ([]string, error)
	// Reseed rebuilds Redis from MySQL, wiping it first, and finishes with this fence. It can be run again. Nil: a pod
	// cannot leave complete. It gives what a person should know of it.
	Reseed func(ctx context.Context, to reservation.Stamp) (string, error)

	// Failpoint, if not nil, is called by name at each step of what changes something. Tests stop there.
	Failpoint func(step string)
	Logger    *slog.Logger
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

// Control is the kill switch of one pod. Its methods are safe for concurrent use.
type Control struct {
	opt Options
	log *slog.Logger
}

// New makes the kill switch of one pod. It asks no store anything.
func New(opt Options) (*Control, error) {
	if err := opt.validate(); err != nil {
		return nil, err
	}
	opt.fill()
	return &Control{opt: opt, log: opt.Logger.With("pod", opt.Pod)}, nil
}

func (o *Options) validate() error {
	switch {
	case o.Pod == "":
		return errors.New("killswitch: the pod has no id")
	case o.Redis == nil || o.MySQL == nil:
		return errors.New("killswitch: both stores are needed")
	case o.Cooldown < 0 || o.LongestTTL < 0 || o.Poll < 0:
		return errors.New("killswitch: a duration is negative")
	case o.MaxStage != 0 && !o.MaxStage.Valid():
		return errors.New("killswitch: max stage is no stage")
	}
	return nil
}

const (
	defaultPoll         = 200 * time.Millisecond
	defaultMinCompared  = 1000
	defaultLatencyRatio = 3
	defaultLatencyFloor = 50 * time.Millisecond
	defaultMaxQueue     = 100
)

func (o *Options) fill() {
	if o.MaxStage == 0 {
		o.MaxStage = reservation.Cutover
	}
	if o.Poll == 0 {
		o.Poll = defaultPoll
	}
	if o.By == "" {
		o.By = whoAmI()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Failpoint == nil {
		o.Failpoint = func(string) {}
	}
	o.Bounds.fill()
}

func (b *Bounds) fill() {
	if b.MinCompared == 0 {
		b.MinCompared = defaultMinCompared
	}
	if b.LatencyRatio == 0 {
		b.LatencyRatio = defaultLatencyRatio
	}
	if b.LatencyFloor == 0 {
		b.LatencyFloor = defaultLatencyFloor
	}
	if b.MaxQueue == 0 {
		b.MaxQueue = defaultMaxQueue
	}
}

func whoAmI() string {
	u, err := user.Current()
	if err != nil || u.Username == "" {
		return "unknown"
	}
	return u.Username
}
