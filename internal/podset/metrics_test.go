package podset

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/config"
	"github.com/twinhold/twinhold/internal/server"
	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/router"
)

var update = flag.Bool("update", false, "write docs/metrics.md anew")

// recorder notes what is registered.
type recorder struct{ descs []string }

func (r *recorder) Register(c prometheus.Collector) error {
	ch := make(chan *prometheus.Desc, 64) // more than any collector of ours describes
	c.Describe(ch)
	close(ch)
	for d := range ch {
		r.descs = append(r.descs, d.String())
	}
	return nil
}

func (r *recorder) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		_ = r.Register(c) // it cannot fail
	}
}

func (r *recorder) Unregister(prometheus.Collector) bool { return false }

var descPattern = regexp.MustCompile(`fqName: "([^"]*)", help: "((?:[^"\\]|\\.)*)"(?:, unit: "[^"]*")?, constLabels: \{(.*?)\}, variableLabels: \{(.*?)\}`)

// TestMetricsAreDocumented: docs/metrics.md names every metric that a pod or the data API registers, and nothing else.
func TestMetricsAreDocumented(t *testing.T) {
	cfg, err := config.Parse([]byte(`version: 1
pods:
  - {id: pod-1, shops: ["1"], redis: "redis://127.0.0.1:1/0", mysql: "root@tcp(127.0.0.1:1)/pod1", mirror: true}
`), "test", func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatal(err)
	}
	rec := &recorder{}
	opt := Options{Registerer: rec}
	p := &Pod{Config: cfg.Pods[0]}
	if err := p.openStores(t.Context(), cfg, opt); err != nil {
		t.Fatal(err)
	}
	if err := p.openCatchUp(time.Second, opt); err != nil {
		t.Fatal(err)
	}
	if err := p.openReconcile(opt); err != nil {
		t.Fatal(err)
	}
	p.Router, err = router.NewPod(p.routerOptions(cfg, reservation.Fence{Stamp: reservation.Stamp{Epoch: 1, Stage: reservation.Shadow}}, reservation.Fence{}, opt))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(t.Context()); err != nil {
			t.Log(err) // no server is there to flush to
		}
	})
	api := &recorder{}
	if _, err := server.New(server.Options{Router: &router.Router{}, AdminListen: "127.0.0.1:0", Registerer: api, Gatherer: prometheus.NewRegistry()}); err != nil {
		t.Fatal(err)
	}
	want := metricsPage(t, rec.descs, api.descs)
	name := filepath.Join("..", "..", "docs", "metrics.md")
	if *update {
		if err := os.WriteFile(name, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("docs/metrics.md is not what the code registers: run go test ./internal/podset -run Metrics -update")
	}
}

const (
	pageHead = `# Metrics

Every metric that a pod registers, with its labels. Names end in their unit. This page is written by a test
(` + "`go test ./internal/podset -run Metrics -update`" + `) from what the code registers, and the test fails where the two differ.

`
	apiHead = `
` + "`serve`" + ` adds what its data API counts, and the Go runtime's own (` + "`go_*`, `process_*`" + `). All of them are at ` + "`/metrics`" + ` of the
admin listener.

`
)

func metricsPage(t *testing.T, pod, api []string) string {
	t.Helper()
	return pageHead + metricsTable(t, pod) + apiHead + metricsTable(t, api)
}

func metricsTable(t *testing.T, descs []string) string {
	t.Helper()
	rows := map[string]string{}
	for _, d := range descs {
		m := descPattern.FindStringSubmatch(d)
		if m == nil {
			t.Fatalf("cannot read %s", d)
		}
		if !strings.HasPrefix(m[1], "twinhold_") {
			t.Errorf("metric %s does not begin with twinhold_", m[1])
		}
		labels := []string{}
		for _, part := range strings.Split(m[3], ",") {
			if k, _, ok := strings.Cut(part, "="); ok {
				labels = append(labels, k)
			}
		}
		for _, l := range strings.Split(m[4], ",") {
			if l != "" {
				labels = append(labels, l)
			}
		}
		rows[m[1]] = fmt.Sprintf("| `%s` | %s | %s |\n", m[1], strings.Join(labels, ", "), strings.ReplaceAll(m[2], `\"`, `"`))
	}
	names := make([]string, 0, len(rows))
	for n := range rows {
		names = append(names, n)
	}
	slices.Sort(names)
	var b strings.Builder
	b.WriteString("| metric | labels | what it says |\n|---|---|---|\n")
	for _, n := range names {
		b.WriteString(rows[n])
	}
	return b.String()
}
