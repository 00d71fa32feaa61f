// Package legacyredis is the reservation store on Redis: the one the project moves away from.
//
// One counter a bucket says what is available, a hash holds each reservation, a key index makes requests
// idempotent, and a sorted set says when each record next needs attention. One Lua script an operation does all of
// it in one atomic step, and every script compares the caller's epoch and stage with the pod's fence in that step, and
// makes a latch that it meets in handover or cutover the fence's.
//
// It is the store that decides, MySQL's partner in handover, and the mirror where MySQL decides (Mirror, Confirm,
// TurnDown, the unjudged pin of a claim); it keeps the pod's fence, kill switch, brakes, heartbeats and audit.
//
// It promises:
//   - all lines or none, and available = on_hand(version) - held after every script;
//   - a write whose reply was lost is sent again only by this package, bounded, with the same id, and has exactly
//     one effect; where no reply settles it, the error is *reservation.UnknownOutcomeError;
//   - a claim is pinned here before the ledger is asked, so that a crash between its steps costs time, never a
//     unit: Sweep rolls old pins forward;
//   - each change of the ledger is applied once, by its version, in whatever order the last steps come;
//   - a server that is not the one that wrote the fence is noticed by its first connection, and believed by nobody
//     until it has been restored (BeginRestore): on Sentinel and Cluster too, where all connections go to the one server
//     that holds the pod;
//   - while a cluster moves the pod's slot, no script does anything (lua/cluster.lua);
//   - a kill needs Redis alone, works where memory is full, and is kept by a restore;
//   - time is Redis's clock, and a bucket without a counter is unknown, never empty.
//
// It never deducts or adds stock by itself, never undoes a pin by time, never speaks to MySQL but through
// reservation.Ledger, and changes a fence only where the caller's is the one that is there. It does not notice a server
// that was turned into a replica and back without a restart: its run id stays the same.
package legacyredis
