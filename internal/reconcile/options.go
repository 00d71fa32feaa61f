package reconcile

import (
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Options configure a Reconciler. Pod and Primary are required; a zero value elsewhere takes the default.
type Options struct {
	// Pod names the pod in what is said, logged and counted.
	Pod string
	// Primary is the pod's schema where it is written, Replica a replica of it; nil: none. Both as mysqlstore.OpenDB opens
	// them (times are UTC). They stay the caller's to close.
	Primary, Replica *sql.DB
	// Rounds is how many rounds in a row a fault has to be there before it lasts. Default 3.
	Rounds int
	// MaxLag is how far a replica may be behind; one that is further behind is not read, the primary is. Default 10m.
	MaxLag time.Duration
	// HoldGrace is how long past its expiry a hold may still be held. Default 10m.
	HoldGrace time.Duration
	// MarkAge is how long an outcome may wait for Redis. Default 10m.
	MarkAge time.Duration
	// PageRows is the most that one transaction reads of a table's rows; fewer where they take long. Default 1000.
	PageRows int
	// PagePause is the pause between two pages, which is never shorter than the page took. Default 10ms.
	PagePause time.Duration
	// PageTimeout bounds one page, and so the life of a read view. Default 10s.
	PageTimeout time.Duration
	// MaxFindings is how many findings of one check a round keeps. Default 200.
	MaxFindings int

	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

const (
	defaultRounds      = 3
	defaultMaxLag      = 10 * time.Minute
	defaultHoldGrace   = 10 * time.Minute
	defaultMarkAge     = 10 * time.Minute
	defaultPageRows    = 1000
	defaultPagePause   = 10 * time.Millisecond
	defaultPageTimeout = 10 * time.Second
	defaultMaxFindings = 200
)

func (o Options) withDefaults() Options {
	o.Rounds = orDefault(o.Rounds, defaultRounds)
	o.MaxLag = orDefault(o.MaxLag, defaultMaxLag)
	o.HoldGrace = orDefault(o.HoldGrace, defaultHoldGrace)
	o.MarkAge = orDefault(o.MarkAge, defaultMarkAge)
	o.PageRows = orDefault(o.PageRows, defaultPageRows)
	o.PagePause = orDefault(o.PagePause, defaultPagePause)
	o.PageTimeout = orDefault(o.PageTimeout, defaultPageTimeout)
	o.MaxFindings = orDefault(o.MaxFindings, defaultMaxFindings)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

func (o Options) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.Pod == "" {
		bad("Pod is empty: give the pod's id")
	}
	if o.Primary == nil {
		bad("Primary is nil: give the pod's schema")
	}
	for name, n := range map[string]int{"Rounds": o.Rounds, "PageRows": o.PageRows, "MaxFindings": o.MaxFindings} {
		if n < 1 {
			bad("%s %d is out of range: use 1 or more", name, n)
		}
	}
	for name, d := range map[string]time.Duration{
		"MaxLag": o.MaxLag, "HoldGrace": o.HoldGrace, "MarkAge": o.MarkAge, "PagePause": o.PagePause, "PageTimeout": o.PageTimeout,
	} {
		if d < 0 {
			bad("%s %v is negative", name, d)
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("reconcile options: %w", errors.Join(errs...))
	}
	return nil
}
