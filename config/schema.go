package config

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/twinhold/twinhold/reservation"
)

// Bounds of the durations and counts that a file may give.
const (
	shortest = time.Millisecond
	longest  = 365 * 24 * time.Hour
	manyRows = 1_000_000
)

// config is the schema of the file: every key that there is.
func (r *reader) config(n *yaml.Node, c *Config) {
	c.Version = 0
	r.mapping(n, "",
		field{"version", r.whole(&c.Version, 1, 1)},
		field{"data", r.section(append(r.listener(&c.Data.Listen, &c.Data.TLS),
			field{"max_in_flight", r.whole(&c.Data.MaxInFlight, 1, manyRows)},
		)...)},
		field{"admin", r.section(append(r.listener(&c.Admin.Listen, &c.Admin.TLS),
			field{"tokens_file", r.path(&c.Admin.TokensFile)},
			field{"router", r.text(&c.Admin.Router, "a name", checkRouterName)},
		)...)},
		field{"defaults", r.section(r.defaults(&c.Defaults)...)},
		field{"payment", r.section(
			field{"timeout", r.duration(&c.Payment.Timeout, shortest, longest)},
			field{"callback_window", r.duration(&c.Payment.CallbackWindow, 0, longest)},
			field{"clock_skew", r.duration(&c.Payment.ClockSkew, 0, time.Hour)},
		)},
		field{"tuning", r.section(r.tuning(&c.Tuning)...)},
		field{"gates", r.section(
			field{"min_compared", r.whole(&c.Gates.MinCompared, 1, 1_000_000_000)},
			field{"max_latency_ratio", r.number(&c.Gates.MaxLatencyRatio, 0.1, 1000)},
			field{"max_queue", r.whole(&c.Gates.MaxQueue, 0, manyRows)},
			field{"evidence_window", r.duration(&c.Gates.EvidenceWindow, time.Minute, longest)},
		)},
		field{"pods", r.list(func(int) read { return r.pod(&c.Pods) })},
	)
}

func (r *reader) defaults(d *Defaults) []field {
	return []field{
		{"ttl", r.duration(&d.TTL, shortest, longest)},
		{"max_ttl", r.duration(&d.MaxTTL, shortest, longest)},
		{"retention", r.duration(&d.Retention, shortest, longest)},
		{"pool_size", r.whole(&d.PoolSize, 1, 100_000)},
		{"low_water", r.fraction(&d.LowWater)},
		{"late_claim", choice(r, &d.LateClaim, "force or refuse", parsePolicy)},
		{"poll", r.duration(&d.Poll, 10*time.Millisecond, time.Minute)},
		{"cooldown", r.duration(&d.Cooldown, 0, longest)},
	}
}

func (r *reader) tuning(t *Tuning) []field {
	return []field{
		{"mirror", r.section(
			field{"queue", r.whole(&t.Mirror.Queue, 1, manyRows)},
			field{"workers", r.whole(&t.Mirror.Workers, 1, 1024)},
			field{"deadline", r.duration(&t.Mirror.Deadline, 10*time.Millisecond, time.Minute)},
			field{"breaker", r.section(
				field{"failures", r.whole(&t.Mirror.Breaker.Failures, 1, manyRows)},
				field{"open_for", r.duration(&t.Mirror.Breaker.OpenFor, 10*time.Millisecond, time.Hour)},
				field{"probes", r.whole(&t.Mirror.Breaker.Probes, 1, 1000)},
			)},
		)},
		{"settle", r.duration(&t.Settle, 10*time.Millisecond, time.Hour)},
		{"catch_up", r.duration(&t.CatchUp, 0, 24*time.Hour)},
		{"catch_up_turn", r.duration(&t.CatchUpTurn, 0, time.Minute)},
		{"catch_up_rate", r.whole(&t.CatchUpRate, 0, 10_000_000)},
		{"freeze_after", r.whole(&t.FreezeAfter, 0, 1000)},
		{"cut_budget", r.duration(&t.CutBudget, 10*time.Millisecond, time.Minute)},
		{"handover_budget", r.duration(&t.HandoverBudget, 10*time.Millisecond, time.Minute)},
		{"look_up", r.duration(&t.LookUp, time.Millisecond, time.Second)},
		{"redis", r.section(
			field{"connections", r.whole(&t.Redis.Connections, 1, 10_000)},
			field{"deadline", r.duration(&t.Redis.Deadline, 10*time.Millisecond, time.Minute)},
		)},
		{"mysql", r.section(
			field{"connections", r.whole(&t.MySQL.Connections, 1, 10_000)},
			field{"deadline", r.duration(&t.MySQL.Deadline, 10*time.Millisecond, time.Minute)},
			field{"transaction_limit", r.duration(&t.MySQL.TransactionLimit, 100*time.Millisecond, time.Minute)},
			field{"lock_wait", r.wholeSeconds(&t.MySQL.LockWait, time.Second, 3*time.Second)},
			field{"attempts", r.whole(&t.MySQL.Attempts, 1, 100)},
			field{"multi_statements", r.yesNo(&t.MySQL.MultiStatements)},
			field{"mirror_connections", r.whole(&t.MySQL.MirrorConnections, 0, 10_000)},
			field{"refill_connections", r.whole(&t.MySQL.RefillConnections, 0, 10_000)},
			field{"background_connections", r.whole(&t.MySQL.BackgroundConnections, 0, 10_000)},
		)},
		{"reconcile", r.duration(&t.Reconcile, time.Second, 24*time.Hour)},
		{"sweep", r.section(
			field{"interval", r.duration(&t.Sweep.Interval, 10*time.Millisecond, time.Hour)},
			field{"batch", r.whole(&t.Sweep.Batch, 1, 10_000)},
			field{"rate", r.whole(&t.Sweep.Rate, 0, 10_000_000)},
			field{"grace", r.duration(&t.Sweep.Grace, 0, 24*time.Hour)},
		)},
		{"pin_lease", r.duration(&t.PinLease, 100*time.Millisecond, time.Hour)},
		{"large_cart", r.whole(&t.LargeCart, 1, manyRows)},
	}
}

// wholeSeconds reads a duration that the server keeps in seconds.
func (r *reader) wholeSeconds(into *time.Duration, least, most time.Duration) read {
	return func(n *yaml.Node, path string) {
		var d time.Duration
		r.duration(&d, least, most)(n, path)
		if d%time.Second != 0 {
			r.wrong(n, path, "%s is not a whole number of seconds: the server keeps no fractions of it", show(d))
			return
		}
		if d != 0 {
			*into = d
		}
	}
}

func (r *reader) pod(into *[]Pod) read {
	return func(n *yaml.Node, path string) {
		p := defaultPod()
		r.mapping(n, path,
			field{"id", r.text(&p.ID, "text", checkPodID)},
			field{"shops", r.list(func(int) read { return r.shops(&p.Shops) })},
			field{"redis", r.secret(&p.Redis, redisForm())},
			field{"redis_file", r.secretFile(&p.Redis, redisForm())},
			field{"mysql", r.secret(&p.MySQL, mysqlForm())},
			field{"mysql_file", r.secretFile(&p.MySQL, mysqlForm())},
			field{"mysql_replica", r.optional(r.secret(&p.MySQLReplica, mysqlForm()))},
			field{"mysql_replica_file", r.secretFile(&p.MySQLReplica, mysqlForm())},
			field{"source_of_truth", choice(r, &p.SourceOfTruth, "redis or mysql", parseTruth)},
			field{"mirror", r.yesNo(&p.Mirror)},
			field{"max_stage", choice(r, &p.MaxStage, "legacy, shadow, handover, cutover or complete", parseStage)},
		)
		*into = append(*into, p)
	}
}

// shops reads one range. A mistake leaves the zero range, so that the others keep their index.
func (r *reader) shops(into *[]ShopRange) read {
	return func(n *yaml.Node, path string) {
		var got ShopRange
		defer func() { *into = append(*into, got) }()
		s, ok := r.scalar(n, path, `a shop or a range of shops, as in "1500" or "1-999"`, "!!str", "!!int")
		if !ok {
			return
		}
		parsed, err := parseShops(s)
		if err != nil {
			r.wrong(n, path, "%q %v", clip(n.Value), err)
			return
		}
		got = parsed
	}
}

// optional leaves an empty text alone.
func (r *reader) optional(then read) read {
	return func(n *yaml.Node, path string) {
		if n.Kind == yaml.ScalarNode && n.Tag == "!!str" && n.Value == "" && n.Anchor == "" {
			return
		}
		then(n, path)
	}
}

func (r *reader) listen(into *string) read {
	return r.text(into, `an address, as in "127.0.0.1:7070"`, func(s string) error {
		_, port, err := net.SplitHostPort(s)
		if err != nil {
			return errors.New(`is not host:port: write an address, as in "127.0.0.1:7070"`)
		}
		if p, err := strconv.Atoi(port); err != nil || p < 0 || p > 65535 {
			return errors.New("has no usable port: use 0 to 65535")
		}
		return nil
	})
}

func (r *reader) path(into *string) read {
	return func(n *yaml.Node, path string) {
		var s string
		r.text(&s, "the name of a file", func(string) error { return nil })(n, path)
		*into = r.beside(s)
	}
}

// listener is what both listeners have.
func (r *reader) listener(listen *string, t *TLS) []field {
	return []field{
		{"listen", r.listen(listen)},
		{"tls_cert_file", r.path(&t.CertFile)},
		{"tls_key_file", r.path(&t.KeyFile)},
	}
}

// checkRouterName keeps names to what is safe in a key, a label and a log line.
func checkRouterName(s string) error {
	if s == "" || len(s) > 100 {
		return fmt.Errorf("has %d characters: use 1 to 100 of letters, digits, . _ and -", len(s))
	}
	for _, c := range s {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '.' && c != '_' {
			return errors.New("has a character that is not safe in a key: use 1 to 100 of letters, digits, . _ and -")
		}
	}
	return nil
}

// checkPodID keeps ids to what is safe in a key, a hash tag, a host name and a label.
func checkPodID(s string) error {
	if s == "" || len(s) > 63 {
		return fmt.Errorf("has %d characters: use 1 to 63 of a-z, 0-9 and -", len(s))
	}
	for _, c := range s {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return errors.New("has a character that is not safe in a key: use 1 to 63 of a-z, 0-9 and -")
		}
	}
	if s[0] == '-' {
		return errors.New("starts with -, which a command would take for a flag: start with a letter or digit")
	}
	return nil
}

func parsePolicy(s string) (reservation.LatePolicy, bool) {
	for _, p := range []reservation.LatePolicy{reservation.ForceLate, reservation.RefuseLate} {
		if p.String() == s {
			return p, true
		}
	}
	return 0, false
}

func parseTruth(s string) (reservation.Truth, bool) {
	for _, t := range []reservation.Truth{reservation.Redis, reservation.MySQL} {
		if t.String() == s {
			return t, true
		}
	}
	return 0, false
}

func parseStage(s string) (reservation.Stage, bool) {
	st, err := reservation.ParseStage(s)
	return st, err == nil
}
