package diff

import (
	"errors"
	"fmt"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Side is one store's half of a pair.
type Side struct {
	Decision reservation.Decision
	// State is the reservation's state after the operation; zero where the store does not know it.
	State reservation.State
	// Record is the whole record where the store gave it.
	Record *reservation.Record
	// Levels is what the store saw available when it decided.
	Levels []reservation.Level
	// Began and Ended bound the time in which the store carried the operation out.
	Began, Ended time.Time
}

// Took is how long the store needed.
func (s Side) Took() time.Duration { return s.Ended.Sub(s.Began) }

// level finds what the side saw in a bucket.
func (s Side) level(b reservation.Bucket) (int64, bool) {
	for _, l := range s.Levels {
		if l.Bucket == b {
			return l.Available, true
		}
	}
	return 0, false
}

// Pair is one operation with both outcomes.
type Pair struct {
	Pod      string
	Op       reservation.Op
	Shop     int64
	ID       reservation.ID
	KeyHash  reservation.Hash
	Stamp    reservation.Stamp
	Lines    []reservation.Line
	Replayed bool
	Truth    Side
	Mirror   Side
}

// truth is the store that decided; the other one is the mirror.
func (p *Pair) truth() reservation.Truth { return truthOf(p.Stamp.Stage) }

// looks gives when each store was looked at.
func (p *Pair) looks() stores[window] {
	t, m := window{p.Truth.Began, p.Truth.Ended}, window{p.Mirror.Began, p.Mirror.Ended}
	if p.truth() == reservation.MySQL {
		return stores[window]{redis: m, mysql: t}
	}
	return stores[window]{redis: t, mysql: m}
}

// sides turns a figure of Redis and one of MySQL into the truth's and the mirror's.
func (p *Pair) sides(redis, mysql int64) (truth, mirror int64) {
	if p.truth() == reservation.MySQL {
		return mysql, redis
	}
	return redis, mysql
}

// errIncoherent is what validate reports; it is a fault in the code that built the pair.
var errIncoherent = errors.New("incoherent pair")

// validate checks a pair before it is compared: what is missing here could only hide a difference.
func (p *Pair) validate() error {
	switch {
	case p.Truth.Decision == 0 || p.Truth.Decision == reservation.Undecided:
		return fmt.Errorf("%w: no decision from the truth", errIncoherent)
	case p.Mirror.Decision == 0 || p.Mirror.Decision == reservation.Undecided:
		return fmt.Errorf("%w: no decision from the mirror", errIncoherent)
	case p.Truth.Ended.Before(p.Truth.Began) || p.Mirror.Ended.Before(p.Mirror.Began):
		return fmt.Errorf("%w: a side ended before it began", errIncoherent)
	default:
		return nil
	}
}
