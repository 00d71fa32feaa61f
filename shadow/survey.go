package shadow

import (
	"context"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Survey is what a dry round found: how far each store is a complete copy of the other.
type Survey struct {
	Pod          string
	Began, Ended time.Time
	Redis, MySQL reservation.Fence // as given
	// Walked counts reservations; Young ones are within the settle time and in no other count but Older.
	Walked, Young int
	// Missing is live in Redis, and MySQL has it not live.
	Missing reservation.Debt
	// Marked and Unconfirmed are live in MySQL, and Redis has them not live: somebody was promised the marked ones; an
	// unconfirmed one is left to its retry or its expiry.
	Marked, Unconfirmed reservation.Debt
	// Differing counts ended reservations and rejections whose states differ, or that one store lacks.
	Differing int
	// Marks is how many marks are outstanding in MySQL.
	Marks int64
	// Pins are claims under way, Provisional ones are Redis's half of a grant in handover.
	Pins, Provisional int
	// ShortBuckets have more promised than there is in MySQL (unpooled below zero); Short names some of them.
	ShortBuckets int
	Short        []reservation.Bucket
	// Lagging counts buckets of which Redis has an older version than the ledger.
	Lagging int
	// Older is the same restricted to records of epochs older than the handover's.
	Older Older
	// Examples names some of each kind, at most 20.
	Examples map[string][]string
}

// Older counts what the gate of cutover waits for, among the records of older epochs than the handover's.
type Older struct {
	// Live counts those that are live in one store only; Unconfirmed of them are MySQL's, and nobody was promised them.
	Live, Unconfirmed int
	// Final counts ended ones and rejections that MySQL has not, or has in another state.
	Final int
}

// Debt is what one store promised and the other lacks, both ways.
func (s Survey) Debt() reservation.Debt { return reservation.Debt{} }

// ReadyForCutover tells whether the gate of cutover passes, and if not, all that it waits for.
func (s Survey) ReadyForCutover() (ok bool, reasons []string) { return false, nil }

// Survey is a dry round: it reads both stores, writes nothing, and counts.
func (c *CatchUp) Survey(_ context.Context, redis, mysql reservation.Fence) (Survey, error) {
	return Survey{Pod: c.opt.Pod, Redis: redis, MySQL: mysql}, nil
}
