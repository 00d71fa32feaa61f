package diff

import (
	"maps"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// kind is what a count counts.
type kind uint8

const (
	kindOperations kind = iota + 1
	kindVerdict
	kindGap
	kindExplained
	kindUnexplained
	kindSampleDropped
	kindFound   // by catch-up
	kindFirst   // decisions of operations that were no replays: what the stores' own records must add up to
	kindRedisMS // latencies of first reserves: name is the bucket's upper bound in milliseconds
	kindMySQLMS
	kindEnd
)

// String gives the kind's name as the tally table stores it.
func (k kind) String() string {
	names := [...]string{
		kindOperations: "operations", kindVerdict: "verdict", kindGap: "gap", kindExplained: "explained",
		kindUnexplained: "unexplained", kindSampleDropped: "sample_dropped", kindFound: "found", kindFirst: "first",
		kindRedisMS: "ms_redis", kindMySQLMS: "ms_mysql",
	}
	return names[k]
}

type cell struct {
	op   reservation.Op
	kind kind
	name string
}

// counts is the engine's tally. The engine's lock guards it.
type counts struct {
	n map[cell]int64
	// flushed is what the sink has of n; base is n at the start of the hour that is being written.
	flushed, base map[cell]int64
	hour          time.Time
	took          stores[histogram]
}

func newCounts() *counts {
	return &counts{
		n:       map[cell]int64{},
		flushed: map[cell]int64{},
		base:    map[cell]int64{},
	}
}

func (c *counts) add(op reservation.Op, k kind, name string, n int64) { c.n[cell{op, k, name}] += n }

// latency notes both stores' times of a first reserve, the one operation that both carry out whole.
func (c *counts) latency(s *Span) {
	p := &s.pair
	if p.Op != reservation.OpReserve || p.Replayed || s.overtaken || s.first != nil {
		return
	}
	truth := p.truth()
	c.took.of(truth).add(p.Truth.Took())
	c.took.of(other(truth)).add(p.Mirror.Took())
}

// snapshot gives every count, latencies too.
func (c *counts) snapshot() map[cell]int64 {
	n := maps.Clone(c.n)
	for k, h := range map[kind]*histogram{kindRedisMS: &c.took.redis, kindMySQLMS: &c.took.mysql} {
		for group, v := range h.n {
			if v > 0 {
				n[cell{reservation.OpReserve, k, boundName(group)}] = v
			}
		}
	}
	return n
}

// Tally is what the engine has counted.
type Tally struct {
	Operations  int64            `json:"operations"`
	ByOp        map[string]int64 `json:"by_op"`
	Compared    int64            `json:"compared"`
	Verdicts    map[string]int64 `json:"verdicts"`
	Gaps        map[string]int64 `json:"gaps"`
	Explained   map[string]int64 `json:"explained"`
	Unexplained int64            `json:"unexplained"`
	First       map[string]int64 `json:"first"`
	Found       map[string]int64 `json:"found"`
	// Unseen is part of Explained: what may be another router's doing, and could not be looked at.
	Unseen      int64                               `json:"unseen"`
	RedisMS     Latency                             `json:"redis_ms"`
	MySQLMS     Latency                             `json:"mysql_ms"`
	Pending     int                                 `json:"pending"`
	unexplained map[reservation.Op]map[string]int64 // by verdict, for the report
}

// Tally gives the counts so far.
func (e *Engine) Tally() Tally {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := tallyOf(e.tally.n)
	t.Pending = len(e.pending)
	t.RedisMS, t.MySQLMS = e.tally.took.redis.latency(), e.tally.took.mysql.latency()
	return t
}

func tallyOf(n map[cell]int64) Tally {
	t := Tally{
		ByOp: map[string]int64{}, Verdicts: map[string]int64{}, Gaps: map[string]int64{}, Explained: map[string]int64{},
		First: map[string]int64{}, Found: map[string]int64{}, unexplained: map[reservation.Op]map[string]int64{},
	}
	ms := stores[map[float64]int64]{redis: map[float64]int64{}, mysql: map[float64]int64{}}
	for c, v := range n {
		switch c.kind {
		case kindRedisMS:
			ms.redis[boundOf(c.name)] += v
		case kindMySQLMS:
			ms.mysql[boundOf(c.name)] += v
		default:
			t.count(c, v)
		}
	}
	t.Unseen = t.Explained[string(Unseen)]
	t.RedisMS, t.MySQLMS = latencyOf(ms.redis), latencyOf(ms.mysql)
	return t
}

func (t *Tally) count(c cell, v int64) {
	switch c.kind {
	case kindOperations:
		t.Operations += v
		t.ByOp[c.op.String()] += v
	case kindVerdict:
		t.Compared += v
		t.Verdicts[c.name] += v
	case kindGap:
		t.Gaps[c.name] += v
	case kindExplained:
		t.Explained[c.name] += v
	case kindUnexplained:
		t.Unexplained += v
		if t.unexplained[c.op] == nil {
			t.unexplained[c.op] = map[string]int64{}
		}
		t.unexplained[c.op][c.name] += v
	case kindFirst:
		t.First[c.name] += v
	case kindFound:
		t.Found[c.name] += v
	case kindSampleDropped, kindRedisMS, kindMySQLMS, kindEnd:
		// told with the samples, and by tallyOf
	}
}

// GapTotal is the number of gaps.
func (t Tally) GapTotal() int64 {
	var n int64
	for _, v := range t.Gaps {
		n += v
	}
	return n
}
