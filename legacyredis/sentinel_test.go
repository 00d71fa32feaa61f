package legacyredis_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/legacyredis"
	"github.com/twinhold/twinhold/reservation"
)

// onSentinel is a rig on a primary with replica and sentinels; it looks on by the primary of the start.
func onSentinel(t *testing.T) (*rig, *devstack.SentinelSet) {
	t.Helper()
	set := sentinels(t, devstack.SentinelOptions{DownAfter: time.Second})
	return rigOnSentinel(t, set, "pod-1"), set
}

func rigOnSentinel(t *testing.T, set *devstack.SentinelSet, pod string) *rig {
	t.Helper()
	r := &rig{tb: t, pod: pod, url: set.URL(0), raw: plainClient(t, set.Primary)}
	r.store = r.open(t, r.url)
	if _, err := r.store.InitFence(t.Context(), stamp()); err != nil {
		t.Fatal(err)
	}
	return r
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

// A user that may not ask for the role is told so, and nothing is done on such a connection.
func TestSentinelNeedsTheRole(t *testing.T) {
	t.Parallel()
	set := sharedSentinels(t)
	r := rigOnSentinel(t, set, devtest.Pod(t))
	r.stock(10)
	if err := r.raw.Do(t.Context(), "ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-role").Err(); err != nil {
		t.Fatal(err)
	}
	s := r.open(t, set.URL(0)+"&username=app&password=pw")
	_, err := s.Reserve(t.Context(), stamp(), newID(t), request(t, "k", time.Hour, line(1, 1)))
	if e := wantAs[*reservation.UnavailableError](t, err); !redis.HasErrorPrefix(e.Cause, "NOPERM") {
		t.Fatal(e)
	}
	if err := r.raw.Do(t.Context(), "ACL", "SETUSER", "app", "+role").Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Reserve(t.Context(), stamp(), newID(t), request(t, "k", time.Hour, line(1, 1))); err != nil {
		t.Fatal(err)
	}
	r.figures(1, 9, 1, 10)
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

// Without any sentinel the connections that are there go on, and no new one is made: nobody says who the primary is.
func TestWithoutSentinels(t *testing.T) {
	t.Parallel()
	r, set := onSentinel(t)
	r.stock(10)
	r.reserve("a", line(1, 1))
	for _, s := range set.Sentinels {
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	r.reserve("b", line(1, 1))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	_, err := r.open(t, r.url).Reserve(ctx, stamp(), newID(t), request(t, "c", time.Hour, line(1, 1)))
	if e := wantAs[*reservation.UnavailableError](t, err); !strings.Contains(e.Error(), "no sentinel names the primary") {
		t.Error(e)
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("it took %s, and the deadline was 1 s", took)
	}
}

// Where a primary has to be followed closely, one that is not takes nothing: it would be lost at a failover.
func TestPrimaryThatNobodyFollowsTakesNothing(t *testing.T) {
	t.Parallel()
	r, set := onSentinel(t)
	r.stock(10)
	r.reserve("k", line(1, 1))
	r.config("min-replicas-to-write", "1")
	if err := set.Replicas[0].Kill(); err != nil {
		t.Fatal(err)
	}
	devtest.Until(t, "the primary is alone", func() bool { return infoField(t, r.raw, "replication", "connected_slaves") == "0" })
	before := contentsOf(t, r.raw)
	_, err := r.tryReserve("new", time.Second)
	if e := wantAs[*reservation.UnavailableError](t, err); !redis.HasErrorPrefix(e.Cause, "NOREPLICAS") {
		t.Fatal(e)
	}
	if diff := cmp.Diff(before, contentsOf(t, r.raw)); diff != "" {
		t.Fatal(diff)
	}
	if again := r.reserve("k", line(1, 1)); !again.Replayed {
		t.Error("a replay writes nothing, and is answered")
	}
}

// By TLS, to a sentinel and to the primary; connections to an old server are not used again there either.
func TestSentinelByTLS(t *testing.T) {
	t.Parallel()
	set := sharedSentinels(t)
	r := rigOnSentinel(t, set, devtest.Pod(t))
	r.stock(10)
	sentinel, primary := byTLS(t, set.Sentinels[0].Addr()), byTLS(t, set.Primary.Addr())
	plain := strings.Replace(set.URL(0), set.Sentinels[0].Addr(), sentinel, 1)
	if _, err := r.open(t, plain).Availability(t.Context(), bucket(1)); err != nil {
		t.Fatalf("without TLS the other sentinels answer: %v", err)
	}
	c := podClient(t, "rediss://"+sentinel+"/0?skip_verify=true&master_name="+set.Name, r.pod)
	c.DialThrough(primary)
	s := r.open(t, r.url, func(o *legacyredis.Options) { o.Client = c })
	for range 3 { // by the same connection
		if _, err := s.Reserve(t.Context(), stamp(), newID(t), request(t, "k", time.Hour, line(1, 1))); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.PoolStats().TotalConns; n != 1 {
		t.Fatalf("%d connections", n)
	}
	misses := c.PoolStats().Misses
	c.Doubt()
	if _, err := s.Reserve(t.Context(), stamp(), newID(t), request(t, "l", time.Hour, line(1, 1))); err != nil {
		t.Fatal(err)
	}
	if p := c.PoolStats(); p.Misses != misses+1 || p.TotalConns != 1 {
		t.Fatalf("the old connection was used again: %+v", p)
	}
	r.figures(1, 8, 2, 10)
}

// byTLS stands in front of a server, with a certificate that nobody trusts.
func byTLS(t *testing.T, addr string) string {
	t.Helper()
	cert := httptest.NewTLSServer(nil)
	cert.Close()
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: cert.TLS.Certificates, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", addr)
			if err != nil {
				_ = in.Close()
				continue
			}
			wg.Go(func() { _, _ = io.Copy(out, in); _ = out.Close() })
			wg.Go(func() { _, _ = io.Copy(in, out); _ = in.Close() })
		}
	})
	return l.Addr().String()
}
