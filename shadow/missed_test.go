package shadow

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/reservation"
)

func TestMissedIsBoundedAndInOrder(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	m, err := NewMissed("pod-1", registry)
	if err != nil {
		t.Fatal(err)
	}
	m.limit = 3
	at := func(ms int) time.Time { return time.UnixMilli(1_000_000 + int64(ms)) }
	var ids [5]reservation.ID
	for i := range ids {
		ids[i] = Before(at(i + 1))
	}
	for i := range 3 {
		if !m.Note(ids[i], at(i)) {
			t.Fatalf("no room for %d", i)
		}
	}
	if m.Note(ids[3], at(4)) || value(t, registry, "twinhold_catchup_missed_overflow_total") != 1 {
		t.Error("a fourth was noted, or not counted")
	}
	if !m.Note(ids[0], at(10)) { // something more of one that waits
		t.Error("one that is there cannot be noted again")
	}
	if got := m.Take(at(10), 10); len(got) != 2 || got[0] != ids[1] || got[1] != ids[2] {
		t.Errorf("taken before the last note: %v", got)
	}
	if got := value(t, registry, "twinhold_catchup_missed_reservations"); got != 3 {
		t.Errorf("%v wait, want one and two in hand", got)
	}
	m.Done(ids[1:3], ids[2:3], at(20))
	if got := m.Take(at(30), 1); len(got) != 1 || got[0] != ids[0] {
		t.Errorf("the first: %v", got)
	}
	if got := m.Take(at(30), 10); len(got) != 1 || got[0] != ids[2] {
		t.Errorf("the one that was put back: %v", got)
	}
	for n := range 100 { // the queue does not grow with notes of the same
		m.Note(ids[4], at(40+n))
	}
	if len(m.queue) > 2*m.limit+1 || len(m.Waiting()) != 1 {
		t.Errorf("%d in the queue, %d wait", len(m.queue), len(m.Waiting()))
	}
}

func TestPacerKeepsItsRate(t *testing.T) {
	t.Parallel()
	p := newPacer(100)
	began := time.Now()
	for range 4 {
		if err := p.read(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took < 390*time.Millisecond {
		t.Errorf("40 records at 100 a second in %s", took)
	}
	var none *pacer
	if err := none.read(t.Context(), 1_000_000); err != nil {
		t.Error(err)
	}
}

func TestIDsAreInOrderOfTime(t *testing.T) {
	t.Parallel()
	now := time.Now()
	id, err := reservation.NewID()
	if err != nil {
		t.Fatal(err)
	}
	if made := Created(id); made.Sub(now).Abs() > time.Minute || above(Before(made), id) || !above(Before(made.Add(time.Millisecond)), id) {
		t.Errorf("%s was made at %s", id, made)
	}
}

// value is that of a metric without labels of its own.
func value(t *testing.T, r *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue() + f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}
