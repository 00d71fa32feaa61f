package killswitch

import (
	"encoding/json"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// KillResult is what a kill did.
type KillResult struct {
	Pod   string `json:"pod"`
	Epoch uint64 `json:"epoch"`
	// Acks is how many of Routers (heard of in the last minute) have acknowledged the epoch; Laggards are the others.
	Acks     int      `json:"acks"`
	Routers  int      `json:"routers"`
	Laggards []string `json:"laggards"`
	// Debt is what Redis lacks of what MySQL has promised; nil where MySQL did not answer in 200 ms.
	Debt *reservation.Debt `json:"debt"`
	// TookMS is how long it took until the kill stood. What follows (acknowledgements, MySQL) is not in it.
	TookMS float64 `json:"took_ms"`

	// AckedMS is how long it took until every router had acknowledged it; nil while there are laggards.
	AckedMS *float64 `json:"acked_ms,omitempty"`
	Stage   string   `json:"stage"`
	// Before is the stage in which it found the pod.
	Before string `json:"before"`
	// Already: it was killed before; nothing was changed.
	Already bool   `json:"already"`
	Reason  string `json:"reason"`
	// MySQL: its fence carries the kill's epoch. If not, the first write of a router raises it.
	MySQL bool `json:"mysql"`
	// Replicas are Redis's; Reached have the kill.
	Replicas Replicas `json:"replicas"`
	Marks    *int64   `json:"marks,omitempty"`
}

// Replicas tells how far a write of Redis got.
type Replicas struct {
	Reached   int `json:"reached"`
	Connected int `json:"connected"`
}

// Verdict is a gate's.
type Verdict string

// The verdicts.
const (
	Pass         Verdict = "pass"
	Fail         Verdict = "fail"
	Inconclusive Verdict = "inconclusive"
)

// The gates, by the names under which they are waived.
const (
	GateDebt     = "debt"     // what one store promised and the other lacks
	GateComplete = "complete" // every record of older epochs is the same in both stores
	GateHealth   = "health"   // both stores answer and agree
	GateQueue    = "queue"    // of the routers' mirrors
	GateBreaker  = "breaker"  // of the routers' mirrors
	GatePool     = "pool"     // no bucket is short
	GateEvidence = "evidence" // the comparison: enough, and nothing unexplained
	GateLatency  = "latency"  // MySQL's beside Redis's
	GateDrill    = "drill"    // a kill was drilled since the last release
	GateCooldown = "cooldown" // since the last kill
)

// Gate is one condition of a move, and what was found.
type Gate struct {
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	// Figure is what was measured, Reason what is wrong with it and what to do.
	Figure   string `json:"figure"`
	Reason   string `json:"reason,omitempty"`
	Waivable bool   `json:"waivable"`
	Waived   bool   `json:"waived"`
	// Awaited: it is not expected to pass yet; the flip waits for it when it gets there.
	Awaited bool `json:"awaited,omitempty"`
}

// Open tells whether the gate lets the move through.
func (g Gate) Open() bool { return g.Verdict == Pass || g.Waived || g.Awaited }

// Step is one move of a flip, with its gates.
type Step struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Gates []Gate `json:"gates"`
	// Does says in words what the step changes.
	Does []string `json:"does"`
}

// Plan is what a flip would do.
type Plan struct {
	Pod   string `json:"pod"`
	Epoch uint64 `json:"epoch"`
	From  string `json:"from"`
	To    string `json:"to"`
	// Steps that are left; none: the pod is there.
	Steps []Step `json:"steps"`
	// Unfinished says what an earlier, interrupted change left to be done first.
	Unfinished []string `json:"unfinished,omitempty"`
	// Refused says why it cannot be done, whatever the gates say (latch, max_stage, no such move).
	Refused []string `json:"refused,omitempty"`
}

// Shut gives the gates of the plan that let nothing through.
func (p Plan) Shut() []Gate {
	var shut []Gate
	for _, s := range p.Steps {
		for _, g := range s.Gates {
			if !g.Open() {
				shut = append(shut, g)
			}
		}
	}
	return shut
}

// Go tells whether the flip would go.
func (p Plan) Go() bool { return len(p.Refused) == 0 && len(p.Shut()) == 0 }

// Order is what a person wants, and answers for.
type Order struct {
	To     reservation.Stage
	Waive  []string // gates, by name; needs a reason
	Reason string
	Ticket string
	// Wait bounds how long the flip waits for the gate complete. Zero: the longest TTL and a margin.
	Wait time.Duration
	// Progress, if not nil, is told what the flip does and what it waits for.
	Progress func(line string)
}

// FlipResult is what a flip did.
type FlipResult struct {
	Pod   string `json:"pod"`
	From  string `json:"from"`
	Stage string `json:"stage"` // in which the pod is now
	Epoch uint64 `json:"epoch"`
	// Moves were made, in order; none: the pod was there.
	Moves []Moved `json:"moves"`
	// Notes say what a person should know: a replica that lacks it, a MySQL that is raised later.
	Notes []string `json:"notes,omitempty"`
}

// Moved is one change of stage that was made.
type Moved struct {
	Step
	Epoch    uint64   `json:"epoch"`
	Waived   []string `json:"waived,omitempty"`
	Replicas Replicas `json:"replicas"`
	// Acks of Routers have acknowledged it by the time at which the next step began; Laggards are the others.
	Acks     int      `json:"acks"`
	Routers  int      `json:"routers"`
	Laggards []string `json:"laggards"`
}

// RearmResult is what a rearm did, or would do.
type RearmResult struct {
	Pod    string `json:"pod"`
	Epoch  uint64 `json:"epoch"`
	Stage  string `json:"stage"`
	Killed bool   `json:"killed"` // still
	Latch  string `json:"latch,omitempty"`
	Gates  []Gate `json:"gates"`
	Done   bool   `json:"done"`
}

// DrillResult is what a drill measured.
type DrillResult struct {
	Pod    string `json:"pod"`
	Before string `json:"before"`
	Stage  string `json:"stage"` // in which the pod is now
	// KillEpoch is the kill's, Epoch the rearm's.
	KillEpoch uint64 `json:"kill_epoch"`
	Epoch     uint64 `json:"epoch"`
	Routers   int    `json:"routers"`
	Acks      int    `json:"acks"`
	// Laggards had not acknowledged within the bound.
	Laggards []string `json:"laggards"`
	KillMS   float64  `json:"kill_ms"`  // until the kill stood
	AckedMS  float64  `json:"acked_ms"` // from the change of epoch (the kill, or in shadow the rearm) until the last router had acknowledged it
	RearmMS  float64  `json:"rearm_ms"` // from the kill to the rearm
	Notes    []string `json:"notes,omitempty"`
}

// FreezeResult tells which stores a brake reached. One is enough.
type FreezeResult struct {
	Pod     string        `json:"pod"`
	Bucket  string        `json:"bucket,omitempty"`
	Frozen  bool          `json:"frozen"`
	Reached []string      `json:"reached"`
	Missed  []MissedStore `json:"missed,omitempty"`
	Notes   []string      `json:"notes,omitempty"`
}

// MissedStore is a store that did not take a change.
type MissedStore struct {
	Store string `json:"store"`
	Error string `json:"error"`
}

// Status is a pod as it is now. What could not be found out in time is null (nil), and HeldBecause says so.
type Status struct {
	Pod          string            `json:"pod"`
	Stage        string            `json:"stage"`
	Epoch        *uint64           `json:"epoch"`
	Truth        string            `json:"truth"`
	Killed       *bool             `json:"killed"`
	Debt         *reservation.Debt `json:"debt"`
	ViewComplete *bool             `json:"view_complete"`
	// Queue is the sum of the routers' mirror queues, Breaker the worst of their breakers.
	Queue       *int           `json:"queue"`
	Breaker     string         `json:"breaker"`
	Routers     []RouterStatus `json:"routers"`
	HeldBecause []string       `json:"held_because"`

	Latch            string      `json:"latch,omitempty"`
	Declared         string      `json:"declared,omitempty"`
	MaxStage         string      `json:"max_stage"`
	Frozen           *bool       `json:"frozen"`
	FrozenBuckets    []string    `json:"frozen_buckets,omitempty"`
	Suspect          *bool       `json:"suspect"`
	Incarnation      *uint64     `json:"incarnation"`
	IncarnationEpoch *uint64     `json:"incarnation_epoch"`
	Marks            *int64      `json:"marks"`
	Laggards         []string    `json:"laggards"`
	Redis            StoreStatus `json:"redis"`
	MySQL            StoreStatus `json:"mysql"`

	// DebtBy is what either store lacks by reason (missing in MySQL; in Redis marked, or unconfirmed; differing: ended ones),
	// with units and the time until the last has ended; nil where there was no survey.
	DebtBy map[string]reservation.Debt `json:"debt_by,omitempty"`
	// BucketFreezes say of each frozen bucket who froze it, and why, as far as the audit tells.
	BucketFreezes []BucketFreeze `json:"bucket_freezes,omitempty"`
	// CatchUp is how far the full rounds are; nil where that is not known.
	CatchUp *CatchUpStatus `json:"catch_up,omitempty"`
}

// BucketFreeze is why a bucket is frozen.
type BucketFreeze struct {
	Bucket string    `json:"bucket"`
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Reason string    `json:"reason"`
	Ticket string    `json:"ticket,omitempty"`
	// Mend is the command that shows the difference behind it; empty: a person froze it.
	Mend string `json:"mend,omitempty"`
	// Evidence is what was known of the difference then.
	Evidence json.RawMessage `json:"evidence,omitempty"`
}

// CatchUpStatus is how far the pod's full rounds of catch-up are.
type CatchUpStatus struct {
	// Router runs them; empty: none does now.
	Router string `json:"router,omitempty"`
	// Began is when the round under way did; nil: none is. It has walked Walked of about Of reservations.
	Began  *time.Time `json:"began,omitempty"`
	Walked int64      `json:"walked"`
	Of     int64      `json:"of"`
	// LastEnded is when the last round came to its end; nil: none has. It took LastTookS, and repaired so many records.
	LastEnded    *time.Time `json:"last_ended,omitempty"`
	LastTookS    float64    `json:"last_took_s"`
	LastWalked   int64      `json:"last_walked"`
	LastRepaired int64      `json:"last_repaired"`
}

// Unknown tells whether neither store could be asked.
func (s Status) Unknown() bool { return s.Redis.Epoch == nil && s.MySQL.Epoch == nil }

// StoreStatus is one store's fence, or why it is not known. Epoch is nil where the store did not say; zero: no fence.
type StoreStatus struct {
	Epoch *uint64 `json:"epoch"`
	Stage *string `json:"stage"`
	Error string  `json:"error,omitempty"`
}

// RouterStatus is one router as it last told of itself.
type RouterStatus struct {
	ID       string  `json:"id"`
	Epoch    uint64  `json:"epoch"`
	SeenSAgo float64 `json:"seen_s_ago"`
	Stage    string  `json:"stage"`
	Cut      bool    `json:"cut"`
	Queue    int     `json:"queue"`
	Breaker  string  `json:"breaker"`
	Skipped  int64   `json:"skipped"`
}

// ReseedResult is what a reseed did, or would do.
type ReseedResult struct {
	Pod   string `json:"pod"`
	Epoch uint64 `json:"epoch"`
	Stage string `json:"stage"`
	Done  bool   `json:"done"`
	// MayBeLost says what Redis might know and MySQL not.
	MayBeLost []string `json:"may_be_lost"`
	Detail    string   `json:"detail,omitempty"`
}
