package bench

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// The benches.
const (
	Pool       = "pool"
	Claim      = "claim"
	SoldOut    = "soldout"
	Neighbours = "neighbours"
	Cost       = "cost"
	Mirror     = "mirror"
)

// shop and group are those of every bucket here; bucket n is item n + 1.
const (
	shop  = 1
	group = 1
)

// plenty is stock that no run uses up; it stays exact in a Lua number.
const plenty = 1 << 40

// ttl is so long that nothing expires while it is measured.
const ttl = 24 * time.Hour

// call is one request of a caller.
type call struct {
	id     reservation.ID
	key    string
	bucket int
}

// answer is what became of it.
type answer int

const (
	granted answer = iota + 1
	rejected
	claimed
	released
)

// reply is an answer, and whether it had been given before.
type reply struct {
	answer   answer
	replayed bool
}

// session is one process's connections to a scheme. Its methods are safe for concurrent use. An error that
// reservation calls busy, unavailable or unknown is sent again by the caller, with the same key.
type session interface {
	reserve(ctx context.Context, c call) (reply, error)
	close() error
}

// claimer is a session that can claim.
type claimer interface {
	claim(ctx context.Context, id reservation.ID) (reply, error)
}

// releaser is a session that can give back.
type releaser interface {
	release(ctx context.Context, id reservation.ID) (reply, error)
}

// books is what a scheme's store says of the whole run: it is compared with what the callers were told.
type books struct {
	stock    int64 // at the beginning
	left     int64 // of it now: not sold, not held
	held     int64 // units of the live reservations
	granted  int64 // reservations that were granted, claimed ones too; -1: not kept
	rejected int64 // stored rejections; -1: not kept
	claimed  int64 // units that claims have deducted
	released int64 // reservations that were given back
	broken   string
}

// scheme is one way to do it.
type scheme struct {
	name string
	what string // for people
	// setUp makes the tables and the stock of a fresh place, and gives how many units it has reserved by itself.
	setUp func(ctx context.Context, p place, stock int64) (laid int64, err error)
	open  func(ctx context.Context, j Job) (session, error)
	read  func(ctx context.Context, p place, stock int64) (books, error)
	// redis: it is Redis that works, and not MySQL.
	redis bool
	both  bool // and MySQL too
	size  size
}

// size is what makes one scheme of Cost differ from its base; zero elsewhere.
type size struct {
	part  string
	base  string // the scheme that its ratios are to
	stock int64  // in place of the bench's
	lines int    // of each cart, each of a bucket of its own
	alone bool   // it is measured with one caller only
}

// findsRate tells whether a bench finds the rate at which its two schemes are measured, and latencies are what it
// compares.
func findsRate(bench string) bool { return bench == Neighbours || bench == Mirror }

// bench is schemes that do the same.
type bench struct {
	name    string
	stock   int64 // of each bucket
	loads   func(callers int, rate float64) []Load
	schemes []scheme
}

// names are those of the schemes, of one part or of all.
func (b bench) names(part string) []string {
	var names []string
	for _, s := range b.schemes {
		if part == "" || s.size.part == part {
			names = append(names, s.name)
		}
	}
	return names
}

// parts are those that schemes belong to.
func (b bench) parts() []string {
	var parts []string
	for _, s := range b.schemes {
		if s.size.part != "" && !slices.Contains(parts, s.size.part) {
			parts = append(parts, s.size.part)
		}
	}
	return parts
}

// base is the scheme that a scheme's ratios are to.
func (b bench) base(name, asked string) string { return cmp.Or(b.scheme(name).size.base, asked) }

func (b bench) stockOf(s scheme) int64 { return cmp.Or(s.size.stock, b.stock) }

func (b bench) scheme(name string) scheme {
	for _, s := range b.schemes {
		if s.name == name {
			return s
		}
	}
	return scheme{}
}

// Benches are the names of all of them.
func Benches() []string { return []string{Pool, Claim, SoldOut, Neighbours, Cost, Mirror} }

// benchOf gives a bench by name. The first scheme is the base.
func benchOf(name string) (bench, bool) {
	switch name {
	case Pool:
		return bench{name: name, stock: plenty, loads: reserves, schemes: []scheme{
			rowScheme("single_row", "UPDATE, INSERT, COMMIT as separate statements", openWritten),
			rowScheme("single_row_best", "the same in one packet, its lock held as short as can be", openBest),
			rowScheme("optimistic", "version column: read, then one packet, again if it lost", openOptimistic),
			poolScheme("pool", "the pool, each call in a transaction of its own", true),
			poolScheme("pool_combined", "the pool, calls of a bucket combined", false),
			counterScheme(),
			redisReserveScheme(),
		}}, true
	case Claim:
		return bench{name: name, stock: plenty, loads: claims, schemes: []scheme{
			poolScheme("claim", "each claim in a transaction of its own", true),
			poolScheme("claim_combined", "claims of a bucket combined", false),
		}}, true
	case SoldOut:
		return bench{name: name, stock: 0, loads: reserves, schemes: []scheme{
			rowScheme("stored", "the single row as written: each rejection in a transaction of its own", openWritten),
			rowScheme("stored_best", "an unlocked look and the stored rejection in one statement", openBest),
			poolScheme("ours_alone", "the pool, each rejection in a transaction of its own", true),
			poolScheme("ours", "the pool: remembered, and stored together", false),
		}}, true
	case Neighbours:
		return bench{name: name, stock: plenty, loads: reserves, schemes: []scheme{
			poolScheme("reserve_alone", "reserves at a third of their maximum", false),
			poolScheme("reserve_beside_claims", "the same, with claims at a third of theirs", false),
		}}, true
	case Cost:
		return bench{name: name, stock: plenty, loads: pairs, schemes: costSchemes()}, true
	case Mirror:
		return bench{name: name, stock: plenty, loads: reserves, schemes: []scheme{
			mirrorScheme("legacy", "a router in stage legacy: Redis alone", false),
			mirrorScheme("shadow", "the same in shadow: MySQL follows, after the answer", true),
		}}, true
	}
	return bench{}, false
}

// reserves is a load of reserves alone.
func reserves(callers int, rate float64) []Load {
	return []Load{{Kind: reserveLoad, Callers: callers, Rate: rate}}
}

// claims is a load of claims alone.
func claims(callers int, rate float64) []Load {
	return []Load{{Kind: claimLoad, Callers: callers, Rate: rate}}
}

// pairs is a load of reserves, each with the release of what it took.
func pairs(callers int, rate float64) []Load {
	return []Load{{Kind: pairLoad, Callers: callers, Rate: rate}}
}
