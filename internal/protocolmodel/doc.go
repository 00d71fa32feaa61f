// Package protocolmodel is the protocol of the design as a model small enough to be exhausted: every interleaving of
// a few routers, requests, flips, kills and faults is walked, breadth first, and the invariants are asked at each state.
//
// Modelled: reserve, claim and release with retries through another router; both sweepers; the mirror queue of shadow;
// flips through all of shadow, handover, cutover and complete and back, the gate of cutover read before it is acted on;
// kill, latch and rearm; Redis's fence and MySQL's, written one after the other; routers that believe an old stage for
// as long as they like; routers cut from Redis, with marks; crashes at any step; lost MySQL replies and the abort of
// handover; two-step catch-up; a Redis failover that loses writes, and the restore. Who decides and which moves are
// allowed is asked of reservation.Stage, which state wins of reservation.Merge: the model has no table of its own.
//
// Not modelled: legacy; clock skew (one clock, three readings: live, due, past the grace); carts of several lines and
// amounts other than one unit; pool rows apart from unpooled, refill, lanes (I2 is mysqlstore's, and available is
// derived, so I3 and I4 hold by construction); adjustments; retention and purge; batches and pages (a restore and a
// reseed are one step); a pod frozen; late_claim "force" (the model refuses, so that I1 has no such exception).
// The exceptions are those of I1 (and of I7, I9 for the same reservation): what a router answered while it could not
// reach Redis and a kill made debt; what a failover lost before it was mirrored; what the restore had to adopt beyond
// the stock, since MySQL cannot tell a hold that was answered from one that was not. A router cut from Redis that claims,
// while the same buyer releases under a kill that MySQL's fence does not carry yet, breaks I5: no world has both.
//
// Nothing is said of what must happen in the end, only of what must never happen.
//
// Each rule of the protocol that a model can miss is a Protection. It can be left out, and the tests show for each one
// the invariant that then breaks.
package protocolmodel
