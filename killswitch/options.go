package killswitch

import (
	"context"
	"errors"
	"fmt"
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

// Survey is how complete each store's view of the other is, as catch-up finds it without writing anything. What is
// younger than the settle time is in none of it.
type Survey struct {
	// Ready: what cutover waits for in handover is there (DESIGN section 3, gate complete). Because says what is not.
	Ready   bool
	Because []string
	// Debt is what one store promised and the other lacks.
	Debt reservation.Debt
	// By gives what either store lacks by reason: missing, marked, unconfirmed, differing.
	By map[string]reservation.Debt
	// Differing counts ended reservations and rejections that differ, or that one store lacks.
	Differing int64
	// Unconfirmed counts MySQL's holds that nobody was promised: each is left to its retry or its expiry.
	Unconfirmed int64
	// ShortBuckets have promised more than they hold (unpooled below zero); Short names some of them.
	ShortBuckets int64
	Short        []reservation.Bucket
}

// lacks says in words what the two stores' views lack; empty: both are complete.
func (s Survey) lacks() []string {
	var out []string
	for _, part := range []struct {
		n    int64
		what string
	}{
		{s.Debt.Reservations, "reservation that one store lacks"},
		{s.Differing, "ended reservation or rejection that differs"},
		{s.Unconfirmed, "hold of MySQL that nobody was promised, left to its retry or expiry"},
		{s.ShortBuckets, "bucket with more promised than there is"},
	} {
		if part.n > 0 {
			out = append(out, fmt.Sprintf("%d x %s", part.n, part.what))
		}
	}
	return out
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
	// ShortBuckets have too few units; Short names some of them.
	ShortBuckets int64
	Short        []reservation.Bucket
}

// Bounds are the figures at which gates open. Left out whole, they are the defaults.
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
	// Rounds tells how far the pod's full rounds are. Nil: not known.
	Rounds func(ctx context.Context) (CatchUpStatus, error)
	// Survey looks, and changes nothing. It is given both fences as they were read. Nil: debt and completeness stay
	// inconclusive.
	Survey func(ctx context.Context, redis, mysql reservation.Fence) (Survey, error)
	// Evidence sums what was compared. Nil: inconclusive.
	Evidence func(ctx context.Context) (Evidence, error)
	// Pool gives the pools' depth. Nil: the survey's short buckets.
	Pool func(ctx context.Context) (PoolDepth, error)
	// Health gives what a doctor would fail the stores for. Nil: only that they answer and agree.
	Health func(ctx context.Context) ([]string, error)
	// Reseed rebuilds Redis from MySQL, wiping it first, and finishes with this fence and this audit record. It can be
	// run again. It gives what a person should know of it. Nil: a pod cannot leave complete here.
	Reseed func(ctx context.Context, to reservation.Stamp, a reservation.AuditRecord) (string, error)

	// Bucket looks at a bucket that is to be frozen: an error if it cannot be one of this pod's. *reservation.InvalidError
	// and *reservation.UnknownBucketError refuse the brake, any other error (no store answers) only becomes a note. Nil: any.
	Bucket func(ctx context.Context, b reservation.Bucket) error

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

// Pod is the pod's id.
func (c *Control) Pod() string { return c.opt.Pod }

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
	if *b == (Bounds{}) {
		b.MaxQueue = defaultMaxQueue // else a bound of zero is one
	}
	if b.MinCompared == 0 {
		b.MinCompared = defaultMinCompared
	}
	if b.LatencyRatio == 0 {
		b.LatencyRatio = defaultLatencyRatio
	}
	if b.LatencyFloor == 0 {
		b.LatencyFloor = defaultLatencyFloor
	}
}

func whoAmI() string {
	u, err := user.Current()
	if err != nil || u.Username == "" {
		return "unknown"
	}
	return u.Username
}

// By is who uses it, as the audit says.
func (c *Control) By() string { return c.opt.By }
