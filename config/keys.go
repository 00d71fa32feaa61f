package config

import (
	"fmt"
	"reflect"
	"strings"
	"time"
)

// key is one value of the file outside its pods, with when a change of it takes effect.
type key struct {
	path  string
	takes When
	value any // a pointer to it
}

// keys is every key outside the pods, in the order of testdata/full.yaml. A restart is needed for what a process
// opens once: listeners, its name, stores, queues.
func keys(c *Config) []key {
	d, p, t, g := &c.Defaults, &c.Payment, &c.Tuning, &c.Gates
	return []key{
		{"data.listen", AfterRestart, &c.Data.Listen},
		{"data.tls_cert_file", Now, &c.Data.TLS.CertFile},
		{"data.tls_key_file", Now, &c.Data.TLS.KeyFile},
		{"data.max_in_flight", AfterRestart, &c.Data.MaxInFlight},
		{"admin.listen", AfterRestart, &c.Admin.Listen},
		{"admin.tls_cert_file", Now, &c.Admin.TLS.CertFile},
		{"admin.tls_key_file", Now, &c.Admin.TLS.KeyFile},
		{"admin.router", AfterRestart, &c.Admin.Router},
		{"admin.tokens_file", Now, &c.Admin.TokensFile},

		{"defaults.ttl", Now, &d.TTL},
		{"defaults.max_ttl", Now, &d.MaxTTL},
		{"defaults.retention", AfterRestart, &d.Retention},
		{"defaults.pool_size", AfterRestart, &d.PoolSize},
		{"defaults.low_water", AfterRestart, &d.LowWater},
		{"defaults.late_claim", AfterRestart, &d.LateClaim},
		{"defaults.poll", Now, &d.Poll},
		{"defaults.cooldown", Now, &d.Cooldown},
		{"payment.timeout", Now, &p.Timeout},
		{"payment.callback_window", Now, &p.CallbackWindow},
		{"payment.clock_skew", Now, &p.ClockSkew},

		{"tuning.mirror.queue", AfterRestart, &t.Mirror.Queue},
		{"tuning.mirror.workers", AfterRestart, &t.Mirror.Workers},
		{"tuning.mirror.deadline", AfterRestart, &t.Mirror.Deadline},
		{"tuning.mirror.breaker.failures", AfterRestart, &t.Mirror.Breaker.Failures},
		{"tuning.mirror.breaker.open_for", AfterRestart, &t.Mirror.Breaker.OpenFor},
		{"tuning.mirror.breaker.probes", AfterRestart, &t.Mirror.Breaker.Probes},
		{"tuning.settle", AfterRestart, &t.Settle},
		{"tuning.catch_up", Now, &t.CatchUp},
		{"tuning.catch_up_turn", Now, &t.CatchUpTurn},
		{"tuning.catch_up_rate", Now, &t.CatchUpRate},
		{"tuning.freeze_after", Now, &t.FreezeAfter},
		{"tuning.cut_budget", Now, &t.CutBudget},
		{"tuning.handover_budget", Now, &t.HandoverBudget},
		{"tuning.look_up", Now, &t.LookUp},
		{"tuning.redis.connections", AfterRestart, &t.Redis.Connections},
		{"tuning.redis.deadline", AfterRestart, &t.Redis.Deadline},
		{"tuning.mysql.connections", AfterRestart, &t.MySQL.Connections},
		{"tuning.mysql.deadline", AfterRestart, &t.MySQL.Deadline},
		{"tuning.mysql.transaction_limit", AfterRestart, &t.MySQL.TransactionLimit},
		{"tuning.mysql.lock_wait", AfterRestart, &t.MySQL.LockWait},
		{"tuning.mysql.attempts", AfterRestart, &t.MySQL.Attempts},
		{"tuning.mysql.multi_statements", AfterRestart, &t.MySQL.MultiStatements},
		{"tuning.mysql.mirror_connections", AfterRestart, &t.MySQL.MirrorConnections},
		{"tuning.mysql.refill_connections", AfterRestart, &t.MySQL.RefillConnections},
		{"tuning.mysql.background_connections", AfterRestart, &t.MySQL.BackgroundConnections},
		{"tuning.reconcile", AfterRestart, &t.Reconcile},
		{"tuning.sweep.interval", Now, &t.Sweep.Interval},
		{"tuning.sweep.batch", Now, &t.Sweep.Batch},
		{"tuning.sweep.rate", AfterRestart, &t.Sweep.Rate},
		{"tuning.sweep.grace", AfterRestart, &t.Sweep.Grace},
		{"tuning.pin_lease", AfterRestart, &t.PinLease},
		{"tuning.large_cart", AfterRestart, &t.LargeCart},

		{"gates.min_compared", Now, &g.MinCompared},
		{"gates.max_latency_ratio", Now, &g.MaxLatencyRatio},
		{"gates.max_queue", Now, &g.MaxQueue},
		{"gates.evidence_window", Now, &g.EvidenceWindow},
	}
}

// text gives the value as the file would write it.
func (k key) text() string {
	v := reflect.ValueOf(k.value).Elem().Interface()
	if d, ok := v.(time.Duration); ok {
		return show(d)
	}
	return fmt.Sprint(v)
}

// take gives k the value of the same key of another configuration.
func (k key) take(from key) { reflect.ValueOf(k.value).Elem().Set(reflect.ValueOf(from.value).Elem()) }

// takesIn is when a change of k takes effect from one configuration to the next: a listener neither begins nor ceases
// to speak TLS, though it takes another certificate.
func (k key) takesIn(old, next *Config) When {
	switch {
	case strings.HasPrefix(k.path, "data.tls_") && old.Data.TLS.On() != next.Data.TLS.On(),
		strings.HasPrefix(k.path, "admin.tls_") && old.Admin.TLS.On() != next.Admin.TLS.On():
		return AfterRestart
	default:
		return k.takes
	}
}
