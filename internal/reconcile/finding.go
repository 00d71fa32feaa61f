package reconcile

import (
	"cmp"
	"fmt"

	"github.com/twinhold/twinhold/reservation"
)

// Check names one kind of fault.
type Check string

// The checks.
const (
	// I2 is pool rows + active reserved quantity + unpooled = on_hand.
	I2 Check = "I2"
	// Negative is unpooled below zero while the pool has rows that anybody can take: I2's second half.
	Negative Check = "I2_negative"
	// I3 is on_hand = sum of the bucket's entries.
	I3 Check = "I3"
	// LineOrphan is a live line without its reservation, LineEnded one whose reservation is not live any more.
	LineOrphan Check = "line_without_reservation"
	LineEnded  Check = "line_of_ended_reservation"
	// LineDiffers is a live line of another quantity than its reservation's cart has.
	LineDiffers Check = "line_unlike_its_cart"
	// ClaimMissing is a live line of a claimed reservation whose deduction is not in the ledger.
	ClaimMissing Check = "claim_without_entry"
	// LineBucket, UnitBucket and EntryBucket are rows of a bucket that has no ledger row.
	LineBucket  Check = "line_without_ledger"
	UnitBucket  Check = "units_without_ledger"
	EntryBucket Check = "entries_without_ledger"
	// HoldEmpty is a live reservation without lines or with fewer than its cart has, HoldOverdue one that is held long past its expiry.
	HoldEmpty   Check = "hold_without_lines"
	HoldOverdue Check = "hold_past_expiry"
	// MarkOrphan is a mark without its reservation, MarkOld one that has waited long for Redis.
	MarkOrphan Check = "mark_without_reservation"
	MarkOld    Check = "mark_old"
)

// Checks lists every check.
func Checks() []Check {
	return []Check{
		I2, Negative, I3, LineOrphan, LineEnded, LineDiffers, ClaimMissing, LineBucket, UnitBucket, EntryBucket, HoldEmpty, HoldOverdue, MarkOrphan, MarkOld,
	}
}

// Finding is one fault, as the last round saw it.
type Finding struct {
	Check Check
	// Bucket and Reservation say where it is; one of them may be zero.
	Bucket      reservation.Bucket
	Reservation reservation.ID
	// Found is what is wrong, with its figures; Fix is how a person mends it.
	Found, Fix string
	// Rounds is in how many rounds in a row it was there; Lasting that these were enough.
	Rounds  int
	Lasting bool
}

// key is what makes two findings of two rounds the same.
type key struct {
	check  Check
	bucket reservation.Bucket
	id     reservation.ID
}

func (f Finding) key() key { return key{f.Check, f.Bucket, f.Reservation} }

func (f Finding) compare(o Finding) int {
	return cmp.Or(cmp.Compare(f.Check, o.Check), f.Bucket.Compare(o.Bucket), cmp.Compare(f.Reservation.String(), o.Reservation.String()))
}

// where names the finding's place for a log line.
func (f Finding) where() string {
	switch {
	case f.Reservation == (reservation.ID{}):
		return f.Bucket.String()
	case f.Bucket == (reservation.Bucket{}):
		return f.Reservation.String()
	default:
		return f.Bucket.String() + " " + f.Reservation.String()
	}
}

// The ways to mend. Each is one transaction of relative changes: it is right whatever else goes on meanwhile. A stock-take
// would not do: it moves both sides of the equation.

const first = "find the cause first (the audit, the statements that were run by hand); `twinhold freeze %s --bucket %s --reason ...` " +
	"stops new reservations of it meanwhile; then: "

// ledgerBack is for a bucket that has lost its ledger row.
const ledgerBack = "put the ledger row back from a backup or from its entries (on_hand is their sum, version their highest)"

func (r *Reconciler) mendBucket(b reservation.Bucket, format string, args ...any) string {
	return fmt.Sprintf(first, r.opts.Pod, b) + fmt.Sprintf(format, args...)
}

// plus is a number as a term that is added.
func plus(n int64) string {
	if n < 0 {
		return fmt.Sprintf("- %d", -n)
	}
	return fmt.Sprintf("+ %d", n)
}

func ofBucket(b reservation.Bucket) string {
	return fmt.Sprintf("shop_id = %d AND inventory_item_id = %d AND inventory_group_id = %d", b.Shop, b.Item, b.Group)
}

func hexOf(id reservation.ID) string { return fmt.Sprintf("x'%x'", id[:]) }
