package diff

import (
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Evidence is what a pod's own MySQL holds of its comparison, of every router, in some hours: what a report is made of.
// See TallyTable.Evidence.
type Evidence struct {
	Pod string
	// Since is the first instant that was asked for; the zero time: all that is kept. Read is the server's clock then.
	Since, Read time.Time
	// Sums are the totals of all hours.
	Sums Sums
	// Hours are in order of time; an hour without a count has none.
	Hours []Hour
	// Coverage counts compared operations by kind of case. Each kind of CaseKinds is there, zero where none was seen.
	Coverage map[CaseKind]int64
	// Impact is what unequal answers were worth, by verdict: OversellRisk and FalseSoldout.
	Impact map[string]Impact
	// Unexplained counts by verdict what counts against the pod.
	Unexplained map[string]int64
	// RedisMS and MySQLMS count first reserves by the upper bound of their latency in milliseconds.
	RedisMS, MySQLMS map[float64]int64
	// Buckets are the worst ones: the most unexplained first, then the most units. BucketsLeftOut counts the differing
	// ones that had no room.
	Buckets        []BucketCount
	BucketsLeftOut int64
	// Samples are whole: the unexplained ones first, newest first. Dropped counts what was not kept, by verdict.
	Samples []Sample
	Dropped map[string]int64
	// Crashes are the router runs that ended without their last flush.
	Crashes []Crash
	// Rules are those that a router of these hours had in force or has found to be out of date.
	Rules []RuleCount
	// Comparators are the versions of the comparator that counted.
	Comparators []string
}

// Hour is one hour's counts.
type Hour struct {
	Start       time.Time
	Operations  int64
	Compared    int64
	Unexplained int64
	Explained   map[string]int64
	Gaps        map[string]int64
}

// Impact is what a kind of difference was worth.
type Impact struct {
	// Operations and Units of all of the kind; Unexplained of them without an explanation.
	Operations       int64 `json:"operations"`
	Units            int64 `json:"units"`
	Unexplained      int64 `json:"unexplained"`
	UnexplainedUnits int64 `json:"unexplained_units"`
}

// BucketCount is what differed in one bucket.
type BucketCount struct {
	Bucket      reservation.Bucket
	Verdict     string
	Operations  int64
	Units       int64
	Unexplained int64
}

// Crash is a router run that ended without its last flush: what it carried out after Last was not counted.
type Crash struct {
	Router string
	// Last is when it flushed for the last time.
	Last time.Time
	// Seconds is how long a flush interval was, and Operations how many it had counted in the one before: what may be
	// missing, at most about.
	Seconds    float64
	Operations int64
}

// RuleCount is a rule (see Rule) and how many differences it explained.
type RuleCount struct {
	Rule    Rule
	Expired bool
	N       int64
}

// Rule is a difference that somebody has decided to accept, for a while. It is never applied past Expires.
type Rule struct {
	Name    string    `json:"name"`
	Owner   string    `json:"owner"`
	Reason  string    `json:"reason"`
	Expires time.Time `json:"expires"`
	// What it matches: a verdict, and, each where it is set, an operation, a shop and an item.
	Verdict string `json:"verdict"`
	Op      string `json:"op,omitempty"`
	Shop    int64  `json:"shop,omitempty"`
	Item    int64  `json:"item,omitempty"`
}

// CaseKind is a kind of case that a comparison should have seen before anybody relies on it.
type CaseKind string

// The kinds of cases.
const (
	HotItem    CaseKind = "hot_item"    // others were at the same bucket at the same time
	LastUnit   CaseKind = "last_unit"   // it took the last units of a bucket, or found too few
	Refill     CaseKind = "refill"      // MySQL's pool had to be refilled for it
	MultiLine  CaseKind = "multi_line"  // several lines
	MultiGroup CaseKind = "multi_group" // lines of several groups
	Expire     CaseKind = "expiry"      // a hold that ended by its time
	Retry      CaseKind = "retry"       // a key, claim or release that was sent again
	LateClaim  CaseKind = "late_claim"  // a claim past the hold's expiry
)

// CaseKinds lists every kind of case.
func CaseKinds() []CaseKind {
	return []CaseKind{HotItem, LastUnit, Refill, MultiLine, MultiGroup, Expire, Retry, LateClaim}
}
