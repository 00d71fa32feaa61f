package bench

import (
	"context"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// The benches.
const (
	Pool       = "pool"
	Claim      = "claim"
	SoldOut    = "soldout"
	Neighbours = "neighbours"
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

// books is what a scheme's store says of the whole run: it is compared with what the callers were told.
type books struct {
	stock    int64 // at the beginning
	left     int64 // of it now: not sold, not held
	held     int64 // units of the live reservations
	granted  int64 // reservations that were granted, claimed ones too; -1: not kept
	rejected int64 // stored rejections; -1: not kept
	claimed  int64 // units that claims have deducted
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
}

// bench is schemes that do the same.
type bench struct {
	name    string
	stock   int64 // of each bucket
	loads   func(o Options) []Load
	schemes []scheme
}

func (b bench) names() []string {
	names := make([]string, len(b.schemes))
	for n, s := range b.schemes {
		names[n] = s.name
	}
	return names
}

func (b bench) scheme(name string) scheme {
	for _, s := range b.schemes {
		if s.name == name {
			return s
		}
	}
	return scheme{}
}

// Benches are the names of all of them.
func Benches() []string { return []string{Pool, Claim, SoldOut, Neighbours} }

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
	}
	return bench{}, false
}

// reserves is a load of reserves alone.
func reserves(o Options) []Load {
	return []Load{{Kind: reserveLoad, Callers: o.Callers, Rate: o.Rate}}
}

// claims is a load of claims alone.
func claims(o Options) []Load {
	return []Load{{Kind: claimLoad, Callers: o.Callers, Rate: o.Rate}}
}
