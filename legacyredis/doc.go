// Package legacyredis is the reservation store on Redis: the one the project moves away from.
//
// One counter a bucket says what is available, a hash holds each reservation, a key index makes requests
// idempotent, and a sorted set says when each record next needs attention. One Lua script an operation does all of
// it in one atomic step, and every script compares the caller's epoch and stage with the pod's fence in that step.
//
// It promises:
//   - all lines or none, and available = on_hand(version) - held after every script;
//   - a write whose reply was lost is sent again only by this package, bounded, with the same id, and has exactly
//     one effect; where no reply settles it, the error is *reservation.UnknownOutcomeError;
//   - a claim is pinned here before the ledger is asked, so that a crash between its steps costs time, never a
//     unit: Sweep rolls old pins forward;
//   - time is Redis's clock, and a bucket without a counter is unknown, never empty.
//
// It never deducts or adds stock by itself (it applies the ledger's figures absolutely, if they are newer), never
// undoes a pin by time, never speaks to MySQL but through reservation.Ledger, and never changes a fence that is there.
package legacyredis
