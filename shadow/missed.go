package shadow

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/reservation"
)

// maxMissed bounds the reservations that wait for a look. What is beyond it is found by the full round.
const maxMissed = 1 << 16

// Missed are reservations that catch-up should look at soon: the mirror has missed something of them. A bounded set, in
// the order of the last time that each was noted. It is safe for concurrent use, and noting one never waits.
type Missed struct {
	limit   int
	waiting prometheus.Gauge
	over    prometheus.Counter

	mu    sync.Mutex
	at    map[reservation.ID]time.Time
	queue []missedAt // an id may be in it again, later: the last one counts
	out   int        // taken, and not done with
}

type missedAt struct {
	id reservation.ID
	at time.Time
}

// NewMissed makes an empty set for a pod.
func NewMissed(pod string, r prometheus.Registerer) (*Missed, error) {
	m := &Missed{limit: maxMissed, at: map[reservation.ID]time.Time{}}
	return m, m.register(pod, r)
}

// Note adds a reservation, as of now. It tells whether there was room.
func (m *Missed) Note(id reservation.ID, now time.Time) bool {
	if id == (reservation.ID{}) {
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, again := m.at[id]; !again && len(m.at) >= m.limit {
		m.over.Inc()
		return false
	}
	m.at[id] = now
	m.queue = append(m.queue, missedAt{id, now})
	if len(m.queue) > 2*m.limit {
		m.compact()
	}
	m.show()
	return true
}

// show publishes how many wait, those that are just being looked at included. The caller holds the lock.
func (m *Missed) show() { m.waiting.Set(float64(len(m.at) + m.out)) }

// compact drops what was noted again later. The caller holds the lock.
func (m *Missed) compact() {
	kept := m.queue[:0]
	for _, w := range m.queue {
		if m.at[w.id].Equal(w.at) {
			kept = append(kept, w)
		}
	}
	m.queue = kept
}

// Take removes those that were last noted before a time, at most limit. Say when they are Done.
func (m *Missed) Take(before time.Time, limit int) []reservation.ID {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []reservation.ID
	for len(m.queue) > 0 && len(out) < limit && m.queue[0].at.Before(before) {
		w := m.queue[0]
		m.queue = m.queue[1:]
		if at, ok := m.at[w.id]; ok && at.Equal(w.at) {
			delete(m.at, w.id)
			out = append(out, w.id)
		}
	}
	m.out += len(out)
	m.show()
	return out
}

// Done ends a look at what was taken; again are those that have to be looked at once more.
func (m *Missed) Done(taken, again []reservation.ID, now time.Time) {
	m.mu.Lock()
	m.out -= len(taken)
	m.show()
	m.mu.Unlock()
	for _, id := range again {
		m.Note(id, now)
	}
}

// Waiting gives those that are in the set.
func (m *Missed) Waiting() []reservation.ID {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]reservation.ID, 0, len(m.at))
	for id := range m.at {
		out = append(out, id)
	}
	return out
}

func (m *Missed) register(pod string, r prometheus.Registerer) error {
	if r == nil {
		r = prometheus.NewRegistry()
	}
	r = prometheus.WrapRegistererWith(prometheus.Labels{"pod": pod}, r)
	var err error
	if m.waiting, err = registered(r, prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "twinhold_catchup_missed_reservations",
		Help: "Reservations of which this router's mirror missed something, and that wait for a look.",
	})); err != nil {
		return err
	}
	m.over, err = registered(r, prometheus.NewCounter(prometheus.CounterOpts{
		Name: "twinhold_catchup_missed_overflow_total",
		Help: "Reservations that were not noted for a look, since too many waited: the full round finds them.",
	}))
	return err
}
