package allpaths

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/internal/invariant"
	"github.com/twinhold/twinhold/internal/reconcile"
	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// asCallers in the environment makes the test binary one process of callers.
const asCallers = "TWINHOLD_TEST_ALLPATHS"

func TestMain(m *testing.M) {
	if spec := os.Getenv(asCallers); spec != "" {
		if err := work(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	devtest.Main(m, devtest.Needs{MySQL: true})
}

const (
	processes = 2
	callersOf = 32
	buckets   = 3
	stocked   = 60
)

// I2, I3: every path of mysqlstore at once, 64 callers in two processes on three buckets.
func TestAllPathsTogether(t *testing.T) {
	long := 4 * time.Second
	if devtest.Soak() {
		long = 60 * time.Second
	}
	dsn := devtest.Schema(t)
	if err := mysqlstore.Migrate(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	s, err := mysqlstore.Open(t.Context(), storeOptions(dsn, nil))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if _, err := s.InitFence(t.Context(), stamp); err != nil {
		t.Fatal(err)
	}
	for item := range int64(buckets) {
		b := reservation.Bucket{Shop: shop, Item: item + 1, Group: 1}
		if _, _, err := s.Stock(t.Context(), stamp, []reservation.Stocking{{Bucket: b, Quantity: stocked}}); err != nil {
			t.Fatal(err)
		}
	}
	results := make([]told, processes)
	var all sync.WaitGroup
	for n := range results {
		all.Go(func() {
			results[n] = spawn(t, job{DSN: dsn, Process: n, Callers: callersOf, Buckets: buckets, For: long})
		})
	}
	ended := make(chan struct{})
	go func() { all.Wait(); close(ended) }()
	samples := sample(t, s, ended)
	sum := told{Said: map[string]int{}, Retries: map[string]float64{}}
	for _, r := range results {
		sum.add(r)
	}
	t.Logf("%d samples; told: %v", samples, sum.Said)
	t.Logf("counted: %v", sum.Retries)
	if len(sum.Errors) > 0 {
		t.Errorf("%d errors reached callers, such as:\n%s", len(sum.Errors), strings.Join(sum.Errors[:min(10, len(sum.Errors))], "\n"))
	}
	for _, what := range []string{"reserve granted", "reserve rejected", "claim claimed", "release", "adjust", "expired", "purged", "forgotten"} {
		if sum.Said[what] == 0 {
			t.Errorf("nothing of %q: the test did not do what it is for", what)
		}
	}
	snap, err := s.Inspect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rep := invariant.Check(nil, &snap, invariant.Options{LedgerOnly: true, Now: time.Now()})
	for _, name := range []string{"I2", "I3"} { // I1 and I6 need the records, which are purged
		if res, ok := rep.Result(name); !ok || len(res.Violations) > 0 {
			t.Errorf("at the end: %s", rep)
		}
	}
}

// sample runs rounds of reconcile until the callers have ended, and gives how many: each reads every bucket's figures from
// one snapshot, and must find nothing.
func sample(t *testing.T, s *mysqlstore.Store, ended <-chan struct{}) int {
	t.Helper()
	r, err := reconcile.New(reconcile.Options{Pod: "pod-1", Primary: s.DB()})
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; ; n++ {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		round, err := r.Round(ctx)
		cancel()
		if err != nil {
			t.Errorf("sample %d: %v", n, err)
		}
		for _, f := range round.Findings {
			t.Errorf("sample %d: %+v", n, f)
		}
		select {
		case <-ended:
			return n
		case <-time.After(200 * time.Millisecond):
		}
		if t.Failed() {
			<-ended
			return n
		}
	}
}

// spawn runs one process of callers to its end.
func spawn(t *testing.T, j job) told {
	spec, err := json.Marshal(j)
	if err != nil {
		t.Error(err)
		return told{}
	}
	ctx, cancel := context.WithTimeout(t.Context(), j.For+2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), asCallers+"="+string(spec))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Errorf("process %d: %v\n%s", j.Process, err, errs.String())
		return told{}
	}
	var res told
	if err := json.Unmarshal(out.Bytes(), &res); err != nil {
		t.Errorf("process %d: %v\n%s", j.Process, err, out.String())
	}
	return res
}

func (t *told) add(o told) {
	for what, n := range o.Said {
		t.Said[what] += n
	}
	for what, n := range o.Retries {
		t.Retries[what] += n
	}
	t.Errors = append(t.Errors, o.Errors...)
}
