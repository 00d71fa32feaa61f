package legacyredis_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/reservation"
)

// onSentinel is a rig on a primary with replica and sentinels; it looks on by the primary of the start.
func onSentinel(t *testing.T) (*rig, *devstack.SentinelSet) {
	t.Helper()
	set := sentinels(t, devstack.SentinelOptions{DownAfter: time.Second})
	r := &rig{tb: t, pod: "pod-1", url: set.URL(0), raw: plainClient(t, set.Primary)}
	r.store = r.open(t, r.url)
	if _, err := r.store.InitFence(t.Context(), stamp()); err != nil {
		t.Fatal(err)
	}
	return r, set
}

// A failover that loses writes, under a client that was connected all along. The first script on the promoted server
// says so, as does everything after it, and not a byte but the suspicion changes until it was restored.
func TestI1FailoverIsNoticed(t *testing.T) {
	t.Parallel()
	r, set := onSentinel(t)
	r.stock(10)
	kept := r.reserve("kept", line(1, 3)).Record.ID
	if n, _, err := r.store.WaitReplica(t.Context(), 5*time.Second); err != nil || n != 1 {
		t.Fatalf("%d, %v", n, err)
	}
	var lost reservation.ID
	err := set.FailOver(t.Context(), func() { lost = r.reserve("lost", line(1, 7)).Record.ID })
	if err != nil {
		t.Fatal(err)
	}
	r.raw = plainClient(t, set.Replicas[0])
	before := contentsOf(t, r.raw)
	if before[r.key("res:%s", kept)] == "" || before[r.key("res:%s", lost)] != "" {
		t.Fatal("the replica has not what it should: nothing is tried")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err = r.store.Reserve(ctx, stamp(), newID(t), request(t, "first", time.Hour, line(1, 7)))
	if e := wantAs[*reservation.FenceError](t, err); e.Verdict != reservation.Regressed || !e.Fence.Suspect {
		t.Fatalf("the first script: %v", e)
	}
	r.refusals(stamp(), kept, reservation.Regressed)
	after := contentsOf(t, r.raw)
	delete(before, r.key("fence"))
	delete(after, r.key("fence"))
	if diff := cmp.Diff(before, after); diff != "" {
		t.Fatal(diff)
	}
	st := r.restoreByHand()
	if res, err := r.store.Reserve(ctx, st, newID(t), request(t, "first", time.Hour, line(1, 7))); err != nil || res.Record.Outcome != reservation.Granted {
		t.Fatalf("after the restore: %+v, %v", res, err)
	}
	r.figures(1, 0, 10, 10)
	wantFine(t, r.check(), "fence", "sentinels")
}

// A sentinel that still names a primary which was demoted leads nobody to a replica.
func TestDemotedPrimaryIsNotUsed(t *testing.T) {
	t.Parallel()
	r, set := onSentinel(t)
	r.stock(10)
	host, port, _ := strings.Cut(set.Replicas[0].Addr(), ":")
	// Behind the sentinels' back, so that they name it until they notice. Its connections stay.
	if err := r.raw.Do(t.Context(), "REPLICAOF", host, port).Err(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := r.store.Reserve(ctx, stamp(), newID(t), request(t, "k", time.Hour, line(1, 1)))
	if code := reservation.CodeOf(err); code != reservation.CodeUnavailable {
		t.Fatalf("a replica was used: %v", err)
	}
	_, err = r.open(t, r.url).Availability(ctx, bucket(1))
	if code := reservation.CodeOf(err); code != reservation.CodeUnavailable {
		t.Fatalf("a replica was read: %v", err)
	}
}

// The doctor looks at the replica too, says of which server each finding is, and asks the sentinels.
func TestCheckOfSentinel(t *testing.T) {
	t.Parallel()
	r, set := onSentinel(t)
	found := r.check()
	wantFine(t, found, "maxmemory-policy", "appendonly", "role", "fence", "sentinels")
	wantFinding(t, found, "min-replicas-to-write", reservation.Warning)
	if err := r.raw.ConfigSet(t.Context(), "min-replicas-to-write", "1").Err(); err != nil {
		t.Fatal(err)
	}
	wantFine(t, r.check(), "min-replicas-to-write")
	replica := plainClient(t, set.Replicas[0])
	if err := replica.ConfigSet(t.Context(), "appendonly", "no").Err(); err != nil {
		t.Fatal(err)
	}
	if err := set.Sentinels[1].Kill(); err != nil {
		t.Fatal(err)
	}
	found = r.check()
	wantFinding(t, found, "sentinels", reservation.Warning)
	bad := 0
	for _, f := range found {
		if f.Severity == reservation.Failure {
			bad++
			if f.Check != "appendonly" || !strings.HasPrefix(f.Found, set.Replicas[0].Addr()) {
				t.Errorf("%+v", f)
			}
		}
	}
	if bad != 1 {
		t.Errorf("%d failures: %+v", bad, found)
	}
	if err := set.Sentinels[2].Kill(); err != nil {
		t.Fatal(err)
	}
	if err := set.Replicas[0].Kill(); err != nil {
		t.Fatal(err)
	}
	found = r.check()
	wantFinding(t, found, "sentinels", reservation.Failure)
}
