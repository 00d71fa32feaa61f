package config

import "time"

// Tuning is the optional part of twinhold.yaml that nobody needs to write. Every key has a default that suits one
// router beside one MySQL and one Redis per pod; testdata/full.yaml names every key of the file with its default.
//
//	tuning:
//	  mirror:                  # the store that follows, in shadow
//	    queue: 8192            # operations that may wait per pod; one more is a gap, counted as queue_full
//	    workers: 64            # mirror writes at once per pod; operations of one reservation share a worker
//	    deadline: 2s           # for one mirror write, its retries included; past it the operation is a gap
//	    breaker:
//	      failures: 10         # failures in a row that open it
//	      open_for: 5s         # how long it stays open before it probes
//	      probes: 3            # successful probes that close it
//	  settle: 2s               # age from which an unequal pair is judged again, and catch-up touches a record
//	  catch_up: 30s            # pause between two full rounds of catch-up; 0s: no full rounds
//	  catch_up_turn: 1s        # between two quick turns: what the mirror is known to have missed, and what is new; 0s: none
//	  catch_up_rate: 20000     # records a second that a full round reads from both stores; 0: as many as it can
//	  freeze_after: 3          # full rounds in a row after which a difference without a cause freezes its bucket; 0: never
//	  cut_budget: 250ms        # for the mirror write of a cutover; past it the router goes on cut from Redis
//	  handover_budget: 1s      # for MySQL's part of a grant in handover; past it the handover is aborted
//	  look_up: 50ms            # for looking a new key up in MySQL while marks are outstanding after a kill
//	  redis:
//	    connections: 64        # per pod and router
//	    deadline: 1s           # for one attempt, where the caller's own deadline is not nearer
//	  mysql:
//	    connections: 64        # per pod and router
//	    deadline: 5s           # for one operation, its retries included
//	    transaction_limit: 1s  # for one write transaction; a raise of the fence waits for the oldest
//	    lock_wait: 2s          # innodb_lock_wait_timeout of our connections: whole seconds, 1s to 3s
//	    attempts: 40           # tries of a transaction that a deadlock, a lock wait or a lost connection ended
//	    multi_statements: true # two packets a shared transaction; false behind a proxy that takes one statement a packet
//	    mirror_connections: 0  # of connections, for what Redis has carried out; 0: three in eight
//	    refill_connections: 0  # of connections, for refills of pools; 0: one in eight
//	    background_connections: 0 # of connections, for sweeps, purges and walks; 0: one in eight
//	  reconcile: 5m            # pause between two rounds of reconcile; what lasts three rounds is alerted
//	  sweep:
//	    interval: 1s           # between two sweeps that found little
//	    batch: 500             # reservations in one sweep
//	    rate: 20000            # rows a second that sweeps expire and purge; 0: as many as they can
//	    grace: 30s             # after which the mirror ends a hold that the truth does not know
//	  pin_lease: 10s           # age from which a claim under way is rolled forward by somebody else
//	  large_cart: 1000         # units in total above which a cart is taken from unpooled, not row by row
type Tuning struct {
	Mirror MirrorTuning
	Settle time.Duration
	// CatchUp 0: no full rounds. CatchUpTurn 0: no quick turns. CatchUpRate 0: no limit.
	CatchUp, CatchUpTurn              time.Duration
	CatchUpRate                       int
	FreezeAfter                       int // 0: never
	CutBudget, HandoverBudget, LookUp time.Duration
	Redis                             RedisTuning
	MySQL                             MySQLTuning
	Reconcile                         time.Duration
	Sweep                             SweepTuning
	PinLease                          time.Duration
	LargeCart                         int
}

// MirrorTuning bounds the mirror of a pod in shadow.
type MirrorTuning struct {
	Queue, Workers int
	Deadline       time.Duration
	Breaker        BreakerTuning
}

// BreakerTuning says when the mirror is left alone for a while.
type BreakerTuning struct {
	Failures int
	OpenFor  time.Duration
	Probes   int
}

// RedisTuning bounds the use of a pod's Redis.
type RedisTuning struct {
	Connections int
	Deadline    time.Duration
}

// MySQLTuning bounds the use of a pod's MySQL.
type MySQLTuning struct {
	Connections                          int
	Deadline, TransactionLimit, LockWait time.Duration
	Attempts                             int
	MultiStatements                      bool
	// Of Connections, for what Redis has carried out, for refills, and for sweeps and walks. 0: a share of them.
	MirrorConnections, RefillConnections, BackgroundConnections int
}

// Shares are how many connections each class may hold, of Connections.
func (t MySQLTuning) Shares() (mirror, refill, background int) {
	or := func(n, eighths int) int {
		if n == 0 {
			return max(1, t.Connections*eighths/8)
		}
		return n
	}
	return or(t.MirrorConnections, 3), or(t.RefillConnections, 1), or(t.BackgroundConnections, 1)
}

// SweepTuning paces the sweeper.
type SweepTuning struct {
	Interval time.Duration
	Batch    int
	Rate     int // rows a second; 0: no limit
	Grace    time.Duration
}

func defaultTuning() Tuning {
	return Tuning{
		Mirror: MirrorTuning{
			Queue: 8192, Workers: 64, Deadline: 2 * time.Second,
			Breaker: BreakerTuning{Failures: 10, OpenFor: 5 * time.Second, Probes: 3},
		},
		Settle:  2 * time.Second,
		CatchUp: 30 * time.Second, CatchUpTurn: time.Second, CatchUpRate: 20_000, FreezeAfter: 3,
		CutBudget: 250 * time.Millisecond, HandoverBudget: time.Second, LookUp: 50 * time.Millisecond,
		Redis: RedisTuning{Connections: 64, Deadline: time.Second},
		MySQL: MySQLTuning{
			Connections: 64, Deadline: 5 * time.Second,
			TransactionLimit: time.Second, LockWait: 2 * time.Second, Attempts: 40, MultiStatements: true,
		},
		Reconcile: 5 * time.Minute,
		Sweep:     SweepTuning{Interval: time.Second, Batch: 500, Rate: 20_000, Grace: 30 * time.Second},
		PinLease:  10 * time.Second,
		LargeCart: 1000,
	}
}
