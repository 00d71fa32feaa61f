package legacyredis

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/reservation"
)

// Defaults of the options that were left out.
const (
	DefaultRetention = 48 * time.Hour
	DefaultPinLease  = 30 * time.Second
)

// Options say where a pod's Redis is and how the store behaves.
type Options struct {
	// Pod is the pod's id. All its keys are under the hash tag {Pod}.
	Pod string
	// Client reaches the pod's Redis; NewClient makes it. The store does not close it.
	Client *Client
	// Ledger makes claims and adjustments permanent.
	Ledger reservation.Ledger
	// Retention is how long a record is kept after its expires_at. Default 48 h.
	Retention time.Duration
	// LatePolicy is what a late claim does when nothing is available. Default force.
	LatePolicy reservation.LatePolicy
	// PinLease is the age at which a pin is rolled forward by Sweep. Default 30 s.
	PinLease time.Duration
	// Logger gets what a person should see. Default: none.
	Logger *slog.Logger
	// Registerer gets the metrics, labelled with the pod. Nil: they are kept but not exposed.
	Registerer prometheus.Registerer
	// Failpoint, if not nil, is called at named points between the steps of an operation. Nil in production.
	Failpoint func(name string)
}

// The names of the failpoints, in the order in which an operation reaches them.
const (
	FailReserveBegun   = "reserve.begun"
	FailReserveDone    = "reserve.done"
	FailClaimPinned    = "claim.pinned"
	FailClaimDeducted  = "claim.deducted"
	FailClaimFinished  = "claim.finished"
	FailReleaseBegun   = "release.begun"
	FailReleaseDone    = "release.done"
	FailAdjustPinned   = "adjust.pinned"
	FailAdjustApplied  = "adjust.applied"
	FailAdjustFinished = "adjust.finished"
	FailSweepBegun     = "sweep.begun"
	FailSweepDone      = "sweep.done"
)

const maxPodBytes = 64

func (o Options) withDefaults() Options {
	if o.Retention == 0 {
		o.Retention = DefaultRetention
	}
	if o.PinLease == 0 {
		o.PinLease = DefaultPinLease
	}
	if o.LatePolicy == 0 {
		o.LatePolicy = reservation.ForceLate
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Failpoint == nil {
		o.Failpoint = func(string) {}
	}
	return o
}

func (o Options) validate() error {
	if err := validatePod(o.Pod); err != nil {
		return err
	}
	switch {
	case o.Client == nil || o.Client.Client == nil:
		return errors.New("legacyredis: Client is missing: make it with legacyredis.NewClient")
	case o.Ledger == nil:
		return errors.New("legacyredis: Ledger is missing: a claim cannot be made without one")
	case o.Retention < 0 || o.PinLease < 0:
		return errors.New("legacyredis: Retention and PinLease must be positive")
	case o.LatePolicy != reservation.ForceLate && o.LatePolicy != reservation.RefuseLate:
		return fmt.Errorf("legacyredis: LatePolicy %d: use ForceLate or RefuseLate", o.LatePolicy)
	}
	return validateClient(o.Client, o.Pod)
}

func validatePod(pod string) error {
	switch {
	case pod == "" || len(pod) > maxPodBytes:
		return fmt.Errorf("legacyredis: Pod %q: use an id of 1 to %d bytes", pod, maxPodBytes)
	case strings.ContainsFunc(pod, func(r rune) bool { return r <= ' ' || r == '{' || r == '}' || r == 0x7f }):
		return fmt.Errorf("legacyredis: Pod %q: use an id without braces, spaces and control characters", pod)
	default:
		return nil
	}
}
