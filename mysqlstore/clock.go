package mysqlstore

import (
	"sync/atomic"
	"time"
)

// clock is MySQL's clock, as it was read last and has gone on since. An instant of it is for the record; whether
// something is late is judged by the server's own.
type clock struct{ last atomic.Pointer[reading] }

type reading struct{ server, local time.Time }

const (
	// clockAge is how old a reading may be, and clockError how far off an instant may be when it is written.
	clockAge   = 10 * time.Second
	clockError = 2 * clockAge
)

// ServerTime is MySQL's clock now, by what was read of it last; false where that was not lately.
func (s *Store) ServerTime() (time.Time, bool) { return s.clock.now(s.opts.Now()) }

func (c *clock) note(server, local time.Time) { c.last.Store(&reading{server, local}) }

// now is false where the clock was not read lately.
func (c *clock) now(local time.Time) (time.Time, bool) {
	r := c.last.Load()
	if r == nil {
		return time.Time{}, false
	}
	age := local.Sub(r.local)
	return r.server.Add(age).Truncate(time.Microsecond), age >= 0 && age < clockAge
}
