package fleet

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/invariant"
	"github.com/twinhold/twinhold/reservation"
)

// heal gives every router back: those that are stopped go on, those that are dead are started.
func (f *fleet) heal() {
	f.tb.Helper()
	for _, p := range f.proxies {
		p.Allow()
	}
	for _, r := range f.routers {
		if !r.running() {
			if err := r.start(); err != nil {
				f.tb.Error(err)
			}
			continue
		}
		if err := r.resume(); err != nil {
			f.tb.Error(err)
		}
	}
}

// restWithin is how long the product may take to bring both stores to the same state once nobody asks any more, beyond
// the longest TTL.
const restWithin = 45 * time.Second

// atRest waits until both stores of every pod hold the same, with nothing live, and every invariant of the stores
// holds. If that does not come, the test fails with what is in the way; the snapshots are given all the same.
func (f *fleet) atRest(longestTTL time.Duration) (redis, mysql []reservation.Snapshot) {
	f.tb.Helper()
	deadline := time.Now().Add(longestTTL + restWithin)
	for i, p := range f.stores {
		for {
			rs, ms, err := p.Inspect(f.tb.Context())
			why := inTheWay(&rs, &ms)
			if err != nil {
				why = err.Error()
			}
			if why == "" || time.Now().After(deadline) {
				if why != "" {
					f.tb.Errorf("pod %s does not come to rest: %s\n%s", f.pods[i].ID, why, f.run(f.tb.Context(), "status", f.pods[i].ID))
				}
				redis, mysql = append(redis, rs), append(mysql, ms)
				break
			}
			pause(f.tb.Context(), 300*time.Millisecond)
		}
	}
	return redis, mysql
}

// inTheWay says why two snapshots are not those of a pod at rest, or nothing.
func inTheWay(redis, mysql *reservation.Snapshot) string {
	if why := unequal(redis, mysql); why != "" {
		return why
	}
	live := map[string]int{}
	for _, s := range []*reservation.Snapshot{redis, mysql} {
		for _, r := range s.Records {
			if r.State.TakesUnits() {
				live[r.State.String()+" in "+s.Store.String()]++
			}
		}
	}
	if len(live) > 0 {
		return fmt.Sprintf("still there: %v", live)
	}
	return ""
}

// unequal says which invariants of the stores do not hold, the strict ones too, or nothing.
func unequal(redis, mysql *reservation.Snapshot) string {
	report := invariant.Check(redis, mysql, invariant.Options{Settled: true, Now: time.Now()})
	if report.OK() {
		return ""
	}
	return report.String()
}

// verdict brings the fleet to rest and judges everything.
func (f *fleet) verdict(longestTTL time.Duration) {
	f.tb.Helper()
	redis, mysql := f.atRest(longestTTL)
	f.accounted()
	f.tb.Log(f.history.summary())
	f.tb.Log("waits for a decision: " + f.history.waits())
	f.audited()
	newJudge(f.history, redis, mysql).report(f.tb)
}

// audited brings what both stores wrote down of the pods' moves into the history.
func (f *fleet) audited() {
	f.tb.Helper()
	for i, p := range f.stores {
		for store, read := range map[string]func(context.Context) ([]reservation.AuditRecord, error){"Redis": p.Redis.Audit, "MySQL": p.MySQL.Audit} {
			recs, err := read(f.tb.Context())
			if err != nil {
				f.tb.Errorf("the audit of pod %s in %s: %v", f.pods[i].ID, store, err)
				continue
			}
			f.history.audit(i, store, recs)
		}
	}
}

// accounted is I11: in every router, operations = compared + gaps, by pod.
func (f *fleet) accounted() {
	f.tb.Helper()
	for _, r := range f.routers {
		if !r.running() {
			continue
		}
		var last string
		untilWithin(f.tb, 15*time.Second, func() bool { last = unaccounted(f.tb.Context(), f.http, r); return last == "" })
		if last != "" {
			f.tb.Errorf("I11: router %s: %s", r.name, last)
		}
	}
}

// untilWithin polls a condition and tells whether it came.
func untilWithin(tb testing.TB, within time.Duration, cond func() bool) bool {
	for deadline := time.Now().Add(within); time.Now().Before(deadline); pause(tb.Context(), 20*time.Millisecond) {
		if cond() {
			return true
		}
	}
	return cond()
}

// unaccounted says which pod's figures do not add up, or nothing.
func unaccounted(ctx context.Context, client *http.Client, r *router) string {
	text, err := get(ctx, client, "http://"+*r.admin.Load()+"/metrics")
	if err != nil {
		return err.Error()
	}
	ops, ended := sums(text, "twinhold_diff_operations_total"), sums(text, "twinhold_diff_compared_total")
	for pod, n := range sums(text, "twinhold_diff_gaps_total") {
		ended[pod] += n
	}
	var wrong []string
	for _, pod := range slices.Sorted(maps.Keys(ops)) {
		if ops[pod] != ended[pod] {
			wrong = append(wrong, fmt.Sprintf("pod %s: %.0f operations, %.0f compared or gaps", pod, ops[pod], ended[pod]))
		}
	}
	return strings.Join(wrong, "; ")
}

// sums adds the samples of one metric up by pod.
func sums(text, name string) map[string]float64 {
	by := map[string]float64{}
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, name+"{")
		if !ok {
			continue
		}
		labels, value, _ := strings.Cut(rest, "} ")
		n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			continue
		}
		_, pod, _ := strings.Cut(labels, `pod="`)
		pod, _, _ = strings.Cut(pod, `"`)
		by[pod] += n
	}
	return by
}

func get(ctx context.Context, client *http.Client, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	res, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return string(text), err
}
