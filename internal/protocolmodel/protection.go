package protocolmodel

import "fmt"

// Protection is one rule of the design that can be left out, to show what it is for.
type Protection uint8

// The protections.
const (
	// RedisFence: a script refuses any stamp but the fence's (section 4).
	RedisFence Protection = iota + 1
	// MySQLFence: a MySQL write refuses an older epoch (section 4).
	MySQLFence
	// Handover: between "Redis decides" and "MySQL decides" lies a stage in which a grant needs both (section 3).
	Handover
	// GateLive: the gate of cutover wants each older record live in both stores or in neither (section 3).
	GateLive
	// GateFinal: it wants each older final one and rejection in MySQL in the same state (section 3).
	GateFinal
	// Provisional: Redis's half of a grant in handover is provisional until MySQL has agreed (section 3).
	Provisional
	// DecidedAfresh: a provisional hold met in a later epoch is decided again, from what is available (section 3).
	DecidedAfresh
	// ForcedOlderHold: a hold of an older epoch, met in handover, is written into MySQL over any no (section 3).
	ForcedOlderHold
	// StoredRejection: in handover a rejection by Redis is stored in MySQL before it is answered (section 3).
	StoredRejection
	// AbortCompares: aborting handover compares the epoch first (section 3).
	AbortCompares
	// AbortDecides: aborting handover decides the reservation afresh; the earlier reply is not the answer (section 3).
	AbortDecides
	// MirrorFirst: in cutover the caller is answered after the mirror write (sections 3 and 4).
	MirrorFirst
	// AsksNewTruth: a router whose mirror write is stale asks the new truth instead of answering (section 4).
	AsksNewTruth
	// Marked: what is answered without Redis carries a mark, written under MySQL's fence before the answer (section 4).
	Marked
	// MarksLookedUp: while marks are outstanding Redis's router looks a new key up in MySQL (section 4).
	MarksLookedUp
	// LookUpRaisesFence: that look-up raises MySQL's fence first, so that no mark of the old epoch can follow it. The
	// design asks for a reading of the fence; this model asks for more, and shows why.
	LookUpRaisesFence
	// NoUnderFence: where MySQL decides beside Redis, a no that it gives (not found, a conflict) is answered only once
	// Redis's fence was read: a yes passes Redis anyway, a no passes nothing. The design does not say so.
	NoUnderFence
	// LeftMySQLFirst: leaving complete fences MySQL before Redis is reseeded (section 3).
	LeftMySQLFirst
	// KillRaisesEpoch: a kill is an epoch of its own (section 4).
	KillRaisesEpoch
	// Pin: a claim pins the hold in Redis before it touches the ledger (section 5).
	Pin
	// PinStopsRelease: a release that meets a pin answers busy (section 5).
	PinStopsRelease
	// PinStopsExpiry: a pin is never undone by time (section 5).
	PinStopsExpiry
	// EntryOnce: an entry that is there already is a replay and lowers nothing (section 5).
	EntryOnce
	// LedgerByVersion: Redis applies a ledger figure only if its version is newer (section 5).
	LedgerByVersion
	// LateFromAvailable: a late claim takes only what is available now (section 5).
	LateFromAvailable
	// UnjudgedPin: a pin that was set while MySQL decided was not judged; whoever joins it judges a late claim in the
	// ledger step, whatever the stage is by then. The design does not say so.
	UnjudgedPin
	// FinalInMySQL: a claim's ledger step finds MySQL's released and refused and leaves the ledger alone (section 5).
	FinalInMySQL
	// ExpiredBecomesReleased: a release of an expired reservation is on record, so that a late claim conflicts (section 5).
	ExpiredBecomesReleased
	// CatchUpCompares: what catch-up writes is a compare-and-set on epoch, stage and the state it read (section 8).
	CatchUpCompares
	// CatchUpLeavesProvisional: catch-up leaves a provisional hold alone (section 3).
	CatchUpLeavesProvisional
	// CatchUpLeavesUnanswered: catch-up neither ends nor adopts a MySQL hold that Redis does not know and nobody marked (section 3).
	CatchUpLeavesUnanswered
	// Suspect: a Redis process that did not write the fence serves nothing until the restore (section 4).
	Suspect
	// RestoreAdopts: the restore adopts by force what MySQL knows as granted (sections 4 and 8).
	RestoreAdopts
	// RestoreRaisesEpoch: the restored pod's epoch is above every epoch seen (section 4).
	RestoreRaisesEpoch

	afterLastProtection
)

// Protections lists them all.
func Protections() []Protection {
	var all []Protection
	for p := Protection(1); p < afterLastProtection; p++ {
		all = append(all, p)
	}
	return all
}

// String gives the protection's name.
func (p Protection) String() string {
	names := [...]string{
		RedisFence: "RedisFence", MySQLFence: "MySQLFence", Handover: "Handover", GateLive: "GateLive", GateFinal: "GateFinal", Provisional: "Provisional",
		DecidedAfresh: "DecidedAfresh", ForcedOlderHold: "ForcedOlderHold", StoredRejection: "StoredRejection",
		AbortCompares: "AbortCompares", AbortDecides: "AbortDecides", MirrorFirst: "MirrorFirst",
		AsksNewTruth: "AsksNewTruth", Marked: "Marked", MarksLookedUp: "MarksLookedUp", LookUpRaisesFence: "LookUpRaisesFence",
		NoUnderFence:   "NoUnderFence",
		LeftMySQLFirst: "LeftMySQLFirst", KillRaisesEpoch: "KillRaisesEpoch", Pin: "Pin",
		PinStopsRelease: "PinStopsRelease", PinStopsExpiry: "PinStopsExpiry", EntryOnce: "EntryOnce",
		LedgerByVersion: "LedgerByVersion", LateFromAvailable: "LateFromAvailable", UnjudgedPin: "UnjudgedPin", FinalInMySQL: "FinalInMySQL",
		ExpiredBecomesReleased: "ExpiredBecomesReleased", CatchUpCompares: "CatchUpCompares", CatchUpLeavesProvisional: "CatchUpLeavesProvisional",
		CatchUpLeavesUnanswered: "CatchUpLeavesUnanswered",
		Suspect:                 "Suspect", RestoreAdopts: "RestoreAdopts", RestoreRaisesEpoch: "RestoreRaisesEpoch",
	}
	if p == 0 || int(p) >= len(names) {
		return fmt.Sprintf("protection(%d)", uint8(p))
	}
	return names[p]
}
