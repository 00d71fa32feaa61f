package reservation

import (
	"context"
	"time"
)

// EntryKind says what an entry of the ledger's journal is for.
type EntryKind string

// The kinds of entries.
const (
	EntryStock  EntryKind = "stock"  // first stocking
	EntryAdjust EntryKind = "adjust" // an adjustment
	EntryClaim  EntryKind = "claim"  // a claim; its delta is negative
)

// Entry is one row of the ledger's journal.
type Entry struct {
	Bucket Bucket
	Kind   EntryKind
	// Reservation is the claimed reservation; the zero ID in entries of other kinds.
	Reservation ID
	// Adjustment is the adjustment's id; empty in entries of other kinds.
	Adjustment string
	Delta      int64
	// Version is the ledger's after this change of the bucket; 0 where it was not kept.
	Version int64
	// Forced: a person let this adjustment go below what was promised.
	Forced bool
	At     time.Time
}

// BucketState is what a store keeps of one bucket, read raw: nothing here is computed from the rest, so that the
// equations between the figures can fail. Figures that a store does not keep are zero.
type BucketState struct {
	Bucket          Bucket
	OnHand, Version int64
	// Available and Held are Redis's counters.
	Available, Held int64
	// Pool is the number of unit rows, Unpooled the stored figure, Reserved the sum of the live lines; MySQL only.
	Pool, Unpooled, Reserved int64
}

// Snapshot is everything that one store holds of a pod.
type Snapshot struct {
	Store   Truth
	Fence   Fence
	Buckets []BucketState // in bucket order
	Records []Record      // in order of id
	// Lines holds the live lines by reservation, as the store keeps them; MySQL only.
	Lines map[ID][]Line
	// Entries is the whole journal; MySQL only.
	Entries []Entry
	// Orphans names rows or keys that belong to nothing (lines without a reservation, units without a ledger row,
	// a key index without its record, a counter without its siblings).
	Orphans []string
}

// Inspector reads a whole store, for checks. It is exact only where nothing is in flight.
type Inspector interface {
	Inspect(ctx context.Context) (Snapshot, error)
}
