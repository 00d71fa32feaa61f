package config

import (
	"slices"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Config is a whole twinhold.yaml with its defaults filled in. Treat it as read-only: it is shared.
type Config struct {
	Version  int
	Data     Data
	Admin    Admin
	Defaults Defaults
	Payment  Payment
	Tuning   Tuning
	Gates    Gates
	Pods     []Pod

	// ranges holds every pod's shops in order, for PodOf.
	ranges []ownedRange
}

// Data is the listener of the data API.
type Data struct {
	Listen string
	TLS    TLS
	// MaxInFlight is how many calls are carried out at once; one more is answered resource_exhausted.
	MaxInFlight int
}

// Admin is the listener of the admin API.
type Admin struct {
	Listen string
	TLS    TLS
	// Router is this router's name among those of a pod; empty: see RouterName.
	Router string
	// TokensFile holds the admin tokens; a relative path is relative to the configuration. Empty: none.
	TokensFile string
}

// Defaults hold for every pod.
type Defaults struct {
	// TTL stands in for a TTL that a caller left out; MaxTTL is the longest that it may ask for.
	TTL, MaxTTL time.Duration
	// Retention is how long a record outlives its expiry. It covers MaxTTL and the payment bounds.
	Retention time.Duration
	// PoolSize is the largest number of unit rows of a bucket; LowWater the part of it below which it is refilled.
	PoolSize int
	LowWater float64
	// LateClaim is what a late claim does when nothing is available.
	LateClaim reservation.LatePolicy
	// Poll is how often a router reads MySQL's fence.
	Poll time.Duration
	// Cooldown is the least time between a kill and its rearm.
	Cooldown time.Duration
}

// Gates say what a flip forward wants to have seen.
type Gates struct {
	// MinCompared is the least number of operations compared within EvidenceWindow: fewer are inconclusive.
	MinCompared    int
	EvidenceWindow time.Duration
	// MaxLatencyRatio is how many times as long as the store that decides now the next one may take.
	MaxLatencyRatio float64
	// MaxQueue is how many operations may wait for the mirror.
	MaxQueue int
}

// Payment bounds how long after a reserve its claim may come.
type Payment struct {
	Timeout, CallbackWindow, ClockSkew time.Duration
}

// Sum is the longest time between a reserve and its claim.
func (p Payment) Sum() time.Duration { return p.Timeout + p.CallbackWindow + p.ClockSkew }

// Pod is one data shard.
type Pod struct {
	ID    string
	Shops []ShopRange
	// Redis, MySQL and MySQLReplica hold credentials; use Reveal to connect. An empty MySQLReplica: none.
	Redis, MySQL, MySQLReplica Secret
	// SourceOfTruth and Mirror declare the stage of a pod that has no fence yet.
	SourceOfTruth reservation.Truth
	Mirror        bool
	// MaxStage is the stage that a flip never goes beyond.
	MaxStage reservation.Stage
}

// DeclaredStage is the stage in which the pod starts if it has no fence yet.
func (p Pod) DeclaredStage() reservation.Stage {
	return reservation.DeclaredStage(p.SourceOfTruth, p.Mirror)
}

// Limits are the bounds on a reservation's TTL.
func (c *Config) Limits() reservation.Limits {
	return reservation.Limits{DefaultTTL: c.Defaults.TTL, MaxTTL: c.Defaults.MaxTTL, MinTTL: c.Payment.Sum()}
}

// Pod finds a pod by its id.
func (c *Config) Pod(id string) (*Pod, bool) {
	i := slices.IndexFunc(c.Pods, func(p Pod) bool { return p.ID == id })
	if i < 0 {
		return nil, false
	}
	return &c.Pods[i], true
}

// PodOf finds the pod that serves a shop.
func (c *Config) PodOf(shop int64) (*Pod, bool) {
	i, found := slices.BinarySearchFunc(c.ranges, shop, func(r ownedRange, shop int64) int {
		switch {
		case r.Last < shop:
			return -1
		case r.First > shop:
			return 1
		default:
			return 0
		}
	})
	if !found {
		return nil, false
	}
	return &c.Pods[c.ranges[i].pod], true
}

// Default is the configuration that an empty file would stand for, without pods.
func Default() Config {
	return Config{
		Version: 1,
		Data:    Data{Listen: "127.0.0.1:7070", MaxInFlight: 4096},
		Admin:   Admin{Listen: "127.0.0.1:7071"},
		Defaults: Defaults{
			TTL: 10 * time.Minute, MaxTTL: time.Hour, Retention: 48 * time.Hour,
			PoolSize: 1000, LowWater: 0.3, LateClaim: reservation.ForceLate,
			Poll: 200 * time.Millisecond, Cooldown: time.Hour,
		},
		Payment: Payment{Timeout: 3 * time.Minute, CallbackWindow: 4 * time.Minute, ClockSkew: 5 * time.Second},
		Tuning:  defaultTuning(),
		Gates:   Gates{MinCompared: 1000, EvidenceWindow: 24 * time.Hour, MaxLatencyRatio: 3, MaxQueue: 100},
	}
}

// defaultPod is a pod in the stage of the system as it was found: Redis alone.
func defaultPod() Pod {
	return Pod{SourceOfTruth: reservation.Redis, MaxStage: reservation.Cutover}
}
