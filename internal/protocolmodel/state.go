package protocolmodel

import "github.com/twinhold/twinhold/reservation"

// The most that a configuration may ask for; fixed, so that a state is comparable.
const (
	maxRequests = 3
	maxRouters  = 2
)

// state is the whole world at one instant: both stores, the processes, what callers were told, and what may still
// happen. It is comparable and is its own key.
type state struct {
	redis   redisStore
	replica redisStore // what a failover would promote
	mysql   mysqlStore
	routers [maxRouters]router
	queue   [maxRequests]mirrorQueue
	catchUp catchUp
	callers [maxRequests]caller
	gate    uint8 // the handover epoch for which the gate of cutover was read as passed
	left    Budget
	broken  invariant
}

// stamp is reservation.Stamp in a smaller size.
type stamp struct {
	epoch uint8
	stage reservation.Stage
}

func (a stamp) next(to reservation.Stage) stamp { return stamp{a.epoch + 1, to} }

// record is one reservation as a store has it; the zero state means that the store does not know it.
type record struct {
	state reservation.State
	epoch uint8
}

func (r record) known() bool { return r.state != 0 }

// redisStore is a pod's Redis. What is available is on_hand minus what is held.
type redisStore struct {
	fence       stamp
	latch       bool
	suspect     bool  // served by another process than the one that wrote the fence
	incarnation uint8 // the epoch of the last restore
	onHand      int8
	version     uint8
	records     [maxRequests]record
	unjudged    [maxRequests]bool // pins whose lateness MySQL has to judge
}

func (r *redisStore) available() int8 { return r.onHand - taken(&r.records) }

// learn gives Redis the ledger's figure: absolutely, and only a newer one.
func (r *redisStore) learn(m *model, onHand int8, version uint8) {
	if version > r.version || !m.has(LedgerByVersion) {
		r.onHand, r.version = onHand, version
	}
}

// mysqlStore is a pod's schema. free is what is in the pool and unpooled together.
type mysqlStore struct {
	fence   stamp
	onHand  int8
	version uint8
	records [maxRequests]record
	entries [maxRequests]uint8 // how often the ledger was lowered for this claim
	marked  [maxRequests]bool
}

func (q *mysqlStore) free() int8 { return q.onHand - taken(&q.records) }

func (q *mysqlStore) marks() bool { return q.marked != [maxRequests]bool{} }

func taken(records *[maxRequests]record) int8 {
	var n int8
	for _, r := range records {
		if r.state.TakesUnits() {
			n++
		}
	}
	return n
}

// router is one process: what it believes, and the operation it is carrying out.
type router struct {
	belief  stamp
	step    step
	op      reservation.Op
	id      uint8
	held    bool // Redis's reply to a reserve was a hold that has been answered before
	cut     bool // this operation goes on without Redis
	judge   bool // the claim's pin was not judged in Redis
	onHand  int8 // the ledger's figure for the claim's finish
	version uint8
}

func (r *router) rest() { *r = router{belief: r.belief} }

// mirrorQueue is what waits to be written to MySQL after the answer: one slot for the reserve, one for the release.
type mirrorQueue [2]record

// catchUp is the worker between its look and its write.
type catchUp struct {
	busy         bool
	id           uint8
	redis, mysql record
	stamp        stamp
	marked       bool
}

// clock is where a reservation stands against its expires_at.
type clock uint8

const (
	live      clock = iota
	due             // past expires_at
	pastGrace       // past the grace of the mirror's sweeper
)

// caller is what the buyer of one request has asked and was told.
type caller struct {
	clock             clock
	reserves, claims  uint8 // attempts left
	releases          uint8
	granted, rejected bool
	claimed, released bool
	releaseAsked      bool
	outcomeLost       bool // a failover lost it before it was mirrored
	overbooked        bool // debt of a cut router, or adopted by the restore beyond what was there
}

// Budget bounds what may happen, so that there is an end.
type Budget struct {
	Flips, BackFlips, Kills, Rearms uint8
	Crashes, LostReplies, Cuts      uint8
	Failovers, CatchUps             uint8
}
