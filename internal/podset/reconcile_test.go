package podset_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/internal/podset/podsettest"
)

// lockedLog is a log that is read while it is written.
type lockedLog struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lockedLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lockedLog) has(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.buf.String(), s)
}

// metric sums a metric over its labels.
func metric(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return sum
}

// TestOneRouterRunsTheRounds: a fault shows in the metrics and the log of the router that runs them, another takes over
// when it has gone, and what is mended is gone.
func TestOneRouterRunsTheRounds(t *testing.T) {
	t.Parallel()
	pods, _ := podsettest.Pods(t, 1)
	log := &lockedLog{}
	regA, regB := prometheus.NewRegistry(), prometheus.NewRegistry()
	pods.Config.Tuning.Reconcile = 30 * time.Millisecond
	a, err := podset.Open(t.Context(), pods.Config, podset.Options{
		Router: "A", Registerer: regA, Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.Close(context.Background()) }) // it is closed on the way, unless the test fails before
	stock(t, a.Pods[0], 1, 10)
	a.Start()
	devtest.Until(t, "A runs rounds", func() bool { return metric(t, regA, "twinhold_reconcile_rounds_total") > 0 })
	b := podsettest.Open(t, pods, podset.Options{Router: "B", Registerer: regB})
	b.Start()

	db := a.Pods[0].MySQL.DB()
	if _, err := db.ExecContext(t.Context(), "/* conn_tag:test */ UPDATE inventory_ledger SET unpooled = unpooled + 1"); err != nil {
		t.Fatal(err)
	}
	devtest.Until(t, "the fault lasts", func() bool { return metric(t, regA, "twinhold_reconcile_findings") == 1 })
	if !log.has("level=ERROR") || !log.has("check=I2") || !log.has("fix=") {
		t.Errorf("the log does not say what lasts and how it is mended:\n%s", log.buf.String())
	}
	if n := metric(t, regB, "twinhold_reconcile_rounds_total"); n != 0 {
		t.Errorf("B has run %v rounds beside A's", n)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	devtest.Until(t, "B finds it too", func() bool { return metric(t, regB, "twinhold_reconcile_findings") == 1 })
	db = b.Pods[0].MySQL.DB()
	if _, err := db.ExecContext(t.Context(), "/* conn_tag:test */ UPDATE inventory_ledger SET unpooled = unpooled - 1"); err != nil {
		t.Fatal(err)
	}
	devtest.Until(t, "it is gone", func() bool { return metric(t, regB, "twinhold_reconcile_findings") == 0 })
}
