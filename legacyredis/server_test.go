package legacyredis_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/legacyredis"
	"github.com/twinhold/twinhold/reservation"
)

// refusals runs everything that must not work on a Redis in doubt and wants the verdict from each.
func (r *rig) refusals(st reservation.Stamp, id reservation.ID, want reservation.FenceVerdict) {
	r.tb.Helper()
	ctx, s := r.tb.Context(), r.store
	rec := reservation.Record{
		ID: id, Shop: 1, Key: "k", Lines: lines(line(1, 1)), Outcome: reservation.Granted, State: reservation.Held,
		DecidedBy: reservation.Redis, CreatedAt: time.Now(), ExpiresAt: time.Now().Add(time.Hour), PurgeAt: time.Now().Add(2 * time.Hour),
	}
	for name, f := range map[string]func() error{
		"reserve": func() error {
			_, err := s.Reserve(ctx, st, newID(r.tb), request(r.tb, "new", time.Hour, line(1, 1)))
			return err
		},
		"claim":   func() error { _, err := s.Claim(ctx, st, 1, id); return err },
		"release": func() error { _, err := s.Release(ctx, st, 1, id); return err },
		"adjust": func() error {
			_, err := s.Adjust(ctx, st, reservation.Adjustment{ID: "a", Bucket: bucket(1), Delta: 1})
			return err
		},
		"sweep": func() error { _, err := s.Sweep(ctx, st, 10); return err },
		"figures": func() error {
			_, err := s.ApplyFigures(ctx, st, []reservation.Figures{{Bucket: bucket(1), OnHand: 1, Version: 99}}, true)
			return err
		},
		"mirror": func() error {
			_, err := s.Mirror(ctx, st, reservation.MirrorOp{Op: reservation.OpReserve, Decision: reservation.Granted, Record: rec})
			return err
		},
		"confirm":   func() error { _, err := s.Confirm(ctx, st, id); return err },
		"turn down": func() error { _, err := s.TurnDown(ctx, st, id, nil); return err },
		"move": func() error {
			_, err := s.Move(ctx, reservation.FenceMove{From: st, To: st.Stage + 1, Audit: by("x")})
			return err
		},
		"rearm":        func() error { _, err := s.Rearm(ctx, st, by("x")); return err },
		"freeze":       func() error { _, err := s.Freeze(ctx, reservation.Bucket{}, true, by("x")); return err },
		"get":          func() error { _, err := s.Get(ctx, 1, id); return err },
		"availability": func() error { _, err := s.Availability(ctx, bucket(1)); return err },
		"walk":         func() error { _, err := s.Walk(ctx, reservation.ID{}, 10); return err },
	} {
		var e *reservation.FenceError
		if err := f(); !errors.As(err, &e) || e.Verdict != want {
			r.tb.Errorf("%s: %v; want %s", name, err, want)
		}
	}
}

// reconnected is a new store of the rig's pod, whose connections are all new.
func (r *rig) reconnected(t *testing.T) {
	t.Helper()
	r.raw = newClient(t, r.url)
	r.store = r.open(t, r.url)
}

// A restarted server has its file, and may lack the last writes: nobody works with it until it was restored. Not one
// byte but the suspicion changes.
func TestRestartedServerIsSuspect(t *testing.T) {
	t.Parallel()
	r, srv := privateRig(t, "--appendfsync", "always")
	r.stock(10)
	id := r.reserve("k", line(1, 3)).Record.ID
	if err := srv.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.reconnected(t)
	before := r.contents()
	r.refusals(stamp(), id, reservation.Regressed)
	f := r.fence()
	if !f.Suspect || f.Stamp != stamp() {
		t.Fatalf("%+v", f)
	}
	after := r.contents()
	delete(before, r.key("fence"))
	delete(after, r.key("fence"))
	if diff := cmp.Diff(before, after); diff != "" {
		t.Fatal(diff)
	}
	if f, err := r.store.Beat(t.Context(), reservation.Heartbeat{Router: "r"}); err != nil || !f.Suspect {
		t.Fatalf("a heartbeat: %+v, %v", f, err)
	}
	if r.raw.Exists(t.Context(), r.key("routers")).Val() != 0 {
		t.Fatal("a suspect Redis took a heartbeat")
	}
	findings, err := r.store.Check(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	wantFinding(t, findings, "fence", reservation.Failure)
}

// Its connections were there before: a client that was connected all along comes back by new ones, and notices.
func TestRestartIsNoticedByTheSameClient(t *testing.T) {
	t.Parallel()
	r, srv := privateRig(t, "--appendfsync", "always")
	r.stock(10)
	id := r.reserve("k", line(1, 3)).Record.ID
	if err := srv.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := r.release(id)
	if e := wantAs[*reservation.FenceError](t, err); e.Verdict != reservation.Regressed || !e.Fence.Suspect {
		t.Fatal(e)
	}
}

// A server that lost its file knows nothing: no fence, and "not found" from nobody.
func TestEmptyServerHasNoFence(t *testing.T) {
	t.Parallel()
	r, srv := privateRig(t, "--appendonly", "no", "--save", "")
	r.stock(10)
	id := r.reserve("k", line(1, 3)).Record.ID
	if err := srv.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.reconnected(t)
	r.refusals(stamp(), id, reservation.NoFence)
	if f, err := r.store.Beat(t.Context(), reservation.Heartbeat{Router: "r"}); err != nil || f.Epoch != 0 {
		t.Fatalf("%+v, %v", f, err)
	}
}

// Another server that was given an older copy of the file: the fence in it is of a server that is gone.
func TestCopiedFileIsSuspect(t *testing.T) {
	t.Parallel()
	stack := devtest.Private(t, devstack.Options{Redis: true, RedisArgs: []string{"--appendonly", "no"}})
	r := newRigOn(t, stack.Redis.URL(0), "pod-1")
	r.stock(10)
	id := r.reserve("k", line(1, 3)).Record.ID
	if err := r.raw.Save(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	r.reserve("lost", line(1, 2))
	dump, err := os.ReadFile(filepath.Join(stack.Redis.DataDir(), "dump.rdb"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "copy.rdb"), dump, 0o600); err != nil {
		t.Fatal(err)
	}
	other, err := stack.AddRedis(t.Context(), "--appendonly", "no", "--dir", dir, "--dbfilename", "copy.rdb")
	if err != nil {
		t.Fatal(err)
	}
	r.url = other.URL(0)
	r.reconnected(t)
	if r.raw.Exists(t.Context(), r.key("res:%s", id)).Val() != 1 {
		t.Fatal("the copy was not loaded: nothing is tested")
	}
	r.refusals(stamp(), id, reservation.Regressed)
}

// Connections that come and go, by the thousand, with passwords and databases, are no reason for suspicion.
func TestReconnectingIsNotSuspicious(t *testing.T) {
	t.Parallel()
	srv := devtest.Private(t, devstack.Options{Redis: true}).Redis
	admin := redis.NewClient(&redis.Options{Addr: srv.Addr()})
	t.Cleanup(func() { _ = admin.Close() })
	if err := admin.Do(t.Context(), "ACL", "SETUSER", "u", "on", ">secret", "~*", "&*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	url := "redis://u:secret@" + srv.Addr() + "/3"
	r := newRigOn(t, url, "pod-1")
	r.stock(10)
	work, done := make(chan int), make(chan error)
	const clients = 1000
	for range 8 {
		go func() {
			for range work {
				c, err := legacyredis.NewClient(url, "pod-1")
				if err == nil {
					err = errors.Join(c.Exists(t.Context(), "x").Err(), c.Close())
				}
				done <- err
			}
		}()
	}
	go func() {
		defer close(work)
		for i := range clients {
			if i%100 == 0 {
				_ = admin.ScriptFlush(t.Context())
				_ = admin.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
			}
			work <- i
		}
	}()
	for range clients {
		<-done // a client that was killed gets an error: that is not what this is about
	}
	if f := r.fence(); f.Suspect || f.Stamp != stamp() {
		t.Fatalf("%+v", f)
	}
	r.reserve("k", line(1, 1))
	if n := admin.DBSize(t.Context()).Val(); n != 0 {
		t.Fatal("it was not in its database")
	}
}

// A server that can answer nothing yet (busy here; loading its file is told in the same way) is asked again later, the
// check of a new connection too.
func TestBusyServerIsNotSuspicious(t *testing.T) {
	t.Parallel()
	r, _ := privateRig(t)
	r.stock(10)
	if err := r.raw.ConfigSet(t.Context(), "busy-reply-threshold", "10").Err(); err != nil {
		t.Fatal(err)
	}
	other := newClient(t, r.url)
	ended := make(chan error, 1)
	if err := other.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	go func() { ended <- other.Eval(t.Context(), "while true do end", nil).Err() }()
	r.untilBusy()
	late := r.open(t, r.url)
	answer := make(chan error, 1)
	go func() {
		_, err := late.Reserve(t.Context(), stamp(), newID(t), request(t, "k", time.Hour, line(1, 1)))
		answer <- err
	}()
	r.killScript()
	<-ended
	if err := <-answer; err != nil {
		t.Fatal(err)
	}
	if f := r.fence(); f.Suspect {
		t.Fatalf("%+v", f)
	}
}

// Kill on a Redis in doubt: the latch is set, and the doubt is told.
func TestI8KillOnARedisInDoubt(t *testing.T) {
	t.Parallel()
	r, srv := privateRig(t, "--appendfsync", "always")
	r.inStage(at(9, reservation.Cutover))
	if err := srv.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.reconnected(t)
	f, err := r.store.Kill(t.Context(), by("x"))
	if e := wantAs[*reservation.FenceError](t, err); e.Verdict != reservation.Regressed || !e.Fence.Killed || !f.Killed {
		t.Fatalf("%+v, %v", f, e)
	}
	if f := r.fence(); !f.Killed || f.Latch != by("x").Reason || f.Stamp != at(9, reservation.Cutover) {
		t.Fatalf("%+v", f)
	}
	if list := r.audit(); len(list) != 1 || list[0].Action != reservation.ActionKill {
		t.Fatalf("%+v", list)
	}
	if err := r.raw.FlushDB(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	f, err = r.store.Kill(t.Context(), by("x"))
	if e := wantAs[*reservation.FenceError](t, err); e.Verdict != reservation.NoFence || !f.Killed {
		t.Fatalf("%+v, %v", f, e)
	}
}

func TestWaitReplica(t *testing.T) {
	t.Parallel()
	stack := devtest.Private(t, devstack.Options{Redis: true, RedisArgs: []string{"--repl-diskless-sync-delay", "0"}})
	r := newRigOn(t, stack.Redis.URL(0), "pod-1")
	if reached, connected, err := r.store.WaitReplica(t.Context(), time.Second); err != nil || reached != 0 || connected != 0 {
		t.Fatalf("%d of %d, %v", reached, connected, err)
	}
	host, port := stack.Redis.Addr()[:9], stack.Redis.Addr()[10:]
	replica, err := stack.AddRedis(t.Context(), "--replicaof", host, port)
	if err != nil {
		t.Fatal(err)
	}
	devtest.Until(t, "the replica follows", func() bool {
		reached, connected, err := r.store.WaitReplica(t.Context(), 5*time.Second)
		return err == nil && reached == 1 && connected == 1
	})
	r.stock(10)
	if reached, _, err := r.store.WaitReplica(t.Context(), 5*time.Second); err != nil || reached != 1 {
		t.Fatalf("%d, %v", reached, err)
	}
	there := redis.NewClient(&redis.Options{Addr: replica.Addr()})
	t.Cleanup(func() { _ = there.Close() })
	if there.Exists(t.Context(), r.key("avail:%s", bucket(1))).Val() != 1 {
		t.Fatal("it has not what was waited for")
	}
	if err := replica.Pause(); err != nil {
		t.Fatal(err)
	}
	r.reserve("k", line(1, 1))
	reached, connected, err := r.store.WaitReplica(t.Context(), 100*time.Millisecond)
	if err != nil || reached != 0 || connected != 1 {
		t.Fatalf("of a replica that stands still: %d of %d, %v", reached, connected, err)
	}
	if err := replica.Resume(); err != nil {
		t.Fatal(err)
	}
}
