package protocolmodel

import (
	"os"
	"strings"
	"testing"

	"github.com/twinhold/twinhold/reservation"
)

// The small worlds: each is exhausted by make test.
func small() map[string]Config {
	return map[string]Config{
		"retries through every stage": {
			Start: reservation.Shadow, Stock: 1, Requests: 1, Routers: 2, Reserves: 2,
			Budget: Budget{Flips: 2, Kills: 1, CatchUps: 1, LostReplies: 1},
		},
		"two buyers and an abort": {
			Start: reservation.Shadow, Stock: 1, Requests: 2, Routers: 2, Reserves: 1,
			Budget: Budget{Flips: 2, Kills: 1, LostReplies: 1},
		},
		"abort and flip": {
			Start: reservation.Handover, Stock: 1, Requests: 2, Routers: 2, Reserves: 1,
			Budget: Budget{Flips: 1, LostReplies: 1},
		},
		"claims and expiry under a kill": {
			Start: reservation.Cutover, Stock: 1, Requests: 2, Routers: 1, Reserves: 1, Claims: 1, Releases: 1, Expiry: true,
			Budget: Budget{Kills: 1},
		},
		"a release under a kill": {
			Start: reservation.Cutover, Stock: 1, Requests: 1, Routers: 2, Reserves: 2, Releases: 2,
			Budget: Budget{Kills: 1, CatchUps: 1},
		},
		"claim twice": {Start: reservation.Shadow, Stock: 2, Requests: 1, Routers: 2, Reserves: 1, Claims: 2},
		"ledger figures in any order": {
			Start: reservation.Shadow, Stock: 2, Requests: 3, Routers: 2, Reserves: 1, Claims: 1,
		},
		"release and the gate": {
			Start: reservation.Shadow, Stock: 1, Requests: 2, Routers: 1, Reserves: 2, Releases: 1, Budget: Budget{Flips: 2},
		},
		"catch-up under a kill": {
			Start: reservation.Cutover, Stock: 1, Requests: 2, Routers: 1, Reserves: 2,
			Budget: Budget{Kills: 1, CatchUps: 2, Crashes: 1},
		},
		"failover in cutover": {
			Start: reservation.Cutover, Stock: 1, Requests: 2, Routers: 2, Reserves: 1,
			Budget: Budget{Failovers: 1, Kills: 1},
		},
		"kill, rearm, flip again": {
			Start: reservation.Handover, Stock: 1, Requests: 2, Routers: 1, Reserves: 2,
			Budget: Budget{Flips: 2, Kills: 1, Rearms: 1},
		},
		"complete and back": {
			Start: reservation.Cutover, Stock: 1, Requests: 2, Routers: 2, Reserves: 1, Complete: true,
			Budget: Budget{Flips: 1, BackFlips: 1, Kills: 1},
		},
	}
}

// The larger worlds: exhausted, or walked to the bound, by make soak.
func large() map[string]Config {
	return map[string]Config{
		"two buyers, there and back": {
			Start: reservation.Shadow, Stock: 1, Requests: 2, Routers: 2, Reserves: 1,
			Budget: Budget{Flips: 2, BackFlips: 1, Kills: 1},
		},
		"one buyer's claims and release": {
			Start: reservation.Shadow, Stock: 1, Requests: 1, Routers: 2, Reserves: 1, Claims: 2, Releases: 1, Expiry: true,
			Budget: Budget{Flips: 2, Kills: 1, Crashes: 1},
		},
		"a router cut from Redis": {
			Start: reservation.Cutover, Stock: 1, Requests: 2, Routers: 2, Reserves: 2,
			Budget: Budget{Kills: 1, Cuts: 1, CatchUps: 1},
		},
		"back from cutover, abort": {
			Start: reservation.Cutover, Stock: 1, Requests: 2, Routers: 2, Reserves: 2,
			Budget: Budget{BackFlips: 1, Flips: 1, LostReplies: 1},
		},
		"provisional and catch-up": {
			Start: reservation.Handover, Stock: 1, Requests: 2, Routers: 1, Reserves: 2,
			Budget: Budget{Flips: 1, BackFlips: 1, Crashes: 1, CatchUps: 1},
		},
		"a router cut from Redis claims": {
			Start: reservation.Cutover, Stock: 1, Requests: 2, Routers: 2, Reserves: 1, Claims: 1,
			Budget: Budget{Kills: 1, Cuts: 1, CatchUps: 1},
		},
		"claims and expiry across flips": {
			Start: reservation.Shadow, Stock: 1, Requests: 2, Routers: 1, Reserves: 1, Claims: 1, Expiry: true,
			Budget: Budget{Flips: 2, BackFlips: 1, Kills: 1},
		},
		"failover": {
			Start: reservation.Shadow, Stock: 1, Requests: 2, Routers: 2, Reserves: 1,
			Budget: Budget{Failovers: 1, Kills: 1, Flips: 1},
		},
		"rearm and flip again": {
			Start: reservation.Handover, Stock: 1, Requests: 2, Routers: 2, Reserves: 2,
			Budget: Budget{Flips: 1, Kills: 1, Rearms: 1, LostReplies: 1},
		},
		"complete, catch-up, kill": {
			Start: reservation.Complete, Stock: 1, Requests: 2, Routers: 2, Reserves: 1, Complete: true,
			Budget: Budget{Flips: 1, BackFlips: 2, Kills: 1, CatchUps: 1},
		},
	}
}

func soak() bool { return os.Getenv("TWINHOLD_SOAK") == "1" }

func TestNoInvariantBreaks(t *testing.T) {
	t.Parallel()
	for name, c := range small() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.MaxStates = 200_000
			r := Explore(c)
			if r.Violation != "" || !r.Exhausted {
				t.Fatal(r)
			}
			t.Log(r)
		})
	}
}

func TestNoInvariantBreaksInLargerWorlds(t *testing.T) {
	if !soak() {
		t.Skip("TWINHOLD_SOAK=1 walks these")
	}
	for name, c := range large() {
		t.Run(name, func(t *testing.T) {
			c.MaxStates = 1_500_000
			if r := Explore(c); r.Violation != "" {
				t.Fatal(r)
			} else {
				t.Log(r)
			}
		})
	}
}

// caught says, for each protection, in which world leaving it out breaks which invariant.
func caught() map[Protection]struct{ world, breaks string } {
	return map[Protection]struct{ world, breaks string }{
		RedisFence:               {"complete and back", "I1"},
		MySQLFence:               {"complete and back", "I8"},
		Handover:                 {"two buyers and an abort", "I1"},
		GateLive:                 {"release and the gate", "I7"},
		GateFinal:                {"release and the gate", "I7"},
		Provisional:              {"two buyers and an abort", "I1"},
		DecidedAfresh:            {"two buyers and an abort", "I1"},
		ForcedOlderHold:          {"release and the gate", "I9"},
		StoredRejection:          {"release and the gate", "I9"},
		AbortCompares:            {"abort and flip", "I1"},
		AbortDecides:             {"back from cutover, abort", "I9"},
		MirrorFirst:              {"catch-up under a kill", "I1"},
		AsksNewTruth:             {"catch-up under a kill", "I1"},
		Marked:                   {"a router cut from Redis", "I1"},
		MarksLookedUp:            {"a router cut from Redis", "I9"},
		LookUpRaisesFence:        {"a router cut from Redis", "I9"},
		NoUnderFence:             {"a release under a kill", "I7"},
		LeftMySQLFirst:           {"complete and back", "I1"},
		KillRaisesEpoch:          {"claims and expiry under a kill", "I1"},
		Pin:                      {"claims and expiry under a kill", "I1"},
		PinStopsRelease:          {"one buyer's claims and release", "I5"},
		PinStopsExpiry:           {"one buyer's claims and release", "I5"},
		EntryOnce:                {"claim twice", "I6"},
		LedgerByVersion:          {"ledger figures in any order", "I1"},
		LateFromAvailable:        {"claims and expiry under a kill", "I1"},
		UnjudgedPin:              {"claims and expiry under a kill", "I1"},
		FinalInMySQL:             {"one buyer's claims and release", "I5"},
		ExpiredBecomesReleased:   {"one buyer's claims and release", "I5"},
		CatchUpCompares:          {"catch-up under a kill", "I1"},
		CatchUpLeavesProvisional: {"provisional and catch-up", "I1"},
		CatchUpLeavesUnanswered:  {"catch-up under a kill", "I1"},
		Suspect:                  {"failover", "I1"},
		RestoreAdopts:            {"failover", "I1"},
		RestoreRaisesEpoch:       {"failover", "I1"},
	}
}

func TestEachProtectionIsCaught(t *testing.T) {
	t.Parallel()
	worlds := large()
	for name, c := range small() {
		worlds[name] = c
	}
	for _, p := range Protections() {
		t.Run(p.String(), func(t *testing.T) {
			t.Parallel()
			want, ok := caught()[p]
			if !ok {
				t.Fatal("no world shows what this protection is for")
			}
			c, ok := worlds[want.world]
			if !ok {
				t.Fatalf("no world %q", want.world)
			}
			c.Without, c.MaxStates = []Protection{p}, 400_000
			r := Explore(c)
			if !strings.HasPrefix(r.Violation, want.breaks+":") {
				t.Fatalf("left out in %q, want %s broken: %v", want.world, want.breaks, r)
			}
			t.Log(r)
		})
	}
}
