package mysqlstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// crashVariable tells this test binary that it is a child, which does one operation and dies at a step of it.
const crashVariable = "TWINHOLD_MYSQLSTORE_JOB"

// crashJob is the operations that only this store has; the contract suite kills the others.
type crashJob struct {
	DSN, Pod, Point string
	Stamp           reservation.Stamp
	Pin             *reservation.Pin
	Op              *reservation.MirrorOp
	Agree           *reservation.Record
	Cut             *reservation.Request // reserved under this ID
	ID              reservation.ID
	CutClaim        reservation.ID
	Raise           *reservation.AuditRecord // to the next epoch
	Crowd           []reservation.Request    // all at once, under CrowdIDs; with CrowdClaims they are claimed
	CrowdIDs        []reservation.ID
	CrowdClaims     bool
	Singly          bool // without packets of several statements
	Gathers         bool // the mirror's operations wait for company
}

func crashChild() {
	text := os.Getenv(crashVariable)
	if text == "" {
		return
	}
	if err := runCrashJob([]byte(text)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(41)
	}
	os.Exit(40)
}

func runCrashJob(text []byte) error {
	var job crashJob
	if err := json.Unmarshal(text, &job); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	gather := time.Duration(-1)
	if job.Gathers {
		gather = time.Millisecond
	}
	s, err := mysqlstore.Open(ctx, mysqlstore.Options{
		DSN: job.DSN, Pod: job.Pod, Retention: time.Hour, WriteTimeout: 3 * time.Second, NoMultiStatements: job.Singly, MirrorGather: gather,
		Failpoint: func(point string) {
			if point == job.Point {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		},
	})
	if err != nil {
		return err
	}
	if len(job.Crowd) > 0 {
		if err := job.crowd(ctx, s); err != nil {
			return err
		}
		<-ctx.Done() // what goes on in the background has time to get there
	}
	return job.run(ctx, s)
}

// crowd carries out all of the crowd at once.
func (j crashJob) crowd(ctx context.Context, s *mysqlstore.Store) error {
	errs := make([]error, len(j.Crowd))
	var wg sync.WaitGroup
	for n, req := range j.Crowd {
		wg.Go(func() {
			if j.CrowdClaims {
				_, errs[n] = s.Claim(ctx, j.Stamp, shop, j.CrowdIDs[n])
				return
			}
			res, err := s.Reserve(ctx, j.Stamp, j.CrowdIDs[n], req)
			if err == nil && (res.Record.State != reservation.Held || res.Record.ID != j.CrowdIDs[n]) {
				err = fmt.Errorf("%+v", res)
			}
			errs[n] = err
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (j crashJob) run(ctx context.Context, s *mysqlstore.Store) (err error) {
	switch {
	case j.Pin != nil:
		_, err = s.Deduct(ctx, j.Stamp, *j.Pin)
	case j.Agree != nil:
		_, err = s.Agree(ctx, j.Stamp, *j.Agree)
	case j.Cut != nil:
		_, err = s.Cut().Reserve(ctx, j.Stamp, j.ID, *j.Cut)
	case j.CutClaim != (reservation.ID{}):
		_, err = s.Cut().Claim(ctx, j.Stamp, shop, j.CutClaim)
	case j.Raise != nil:
		_, err = s.Raise(ctx, reservation.Stamp{Epoch: j.Stamp.Epoch + 1, Stage: j.Stamp.Stage}, j.Raise)
	default:
		_, err = s.Mirror(ctx, j.Stamp, *j.Op)
	}
	return err
}

// killedAt runs the job in a child process that must die at the point by kill -9.
func killedAt(t *testing.T, b *bench, job crashJob) {
	t.Helper()
	job.DSN, job.Pod, job.Stamp = b.dsn, b.opts.Pod, b.st
	text, err := json.Marshal(job)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^$")
	cmd.Env = append(os.Environ(), crashVariable+"="+string(text))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("the child: %v\n%s", err, out)
	}
	if ws, ok := exit.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		t.Fatalf("the child ended with %v before it came to %q\n%s", err, job.Point, out)
	}
}

// TestDeductKilled (I6): a claim's MySQL half, killed with -9 at each of its steps and run again, deducts once.
func TestDeductKilled(t *testing.T) {
	t.Parallel()
	b := open(t, shadow)
	item := int64(0)
	for _, point := range []string{"ledger", "record", "entries", "commit", "committed"} {
		for _, known := range []bool{true, false} {
			item++
			stockOne(t, b, item, 10)
			rec := truthRecord(t, fmt.Sprint("k", item), reservation.Held, time.Minute, line(item, 4))
			if known {
				b.mirror(granted(rec))
			}
			pin := pinOf(rec)
			killedAt(t, b, crashJob{Point: "deduct." + point, Pin: &pin})
			d := b.deduct(pin)
			if d.State != reservation.Claimed || d.Replayed != (point == "committed") {
				t.Errorf("killed at %s (known %t), again: %s, replayed %t", point, known, d.State, d.Replayed)
			}
			b.figures(item, 6, 6)
			if j := b.mirror(granted(rec)); j.State != reservation.Claimed || j.Decision != reservation.Granted {
				t.Errorf("killed at %s (known %t), its reserve: %+v", point, known, j)
			}
		}
	}
	b.invariants()
}

// TestMirrorKilled: a mirrored grant, forced or not, and a release, killed at each step and run again.
func TestMirrorKilled(t *testing.T) {
	t.Parallel()
	b := open(t, shadow)
	item := int64(0)
	for _, c := range []struct {
		op     func(reservation.Record) reservation.MirrorOp
		path   string
		stock  int64
		points []string
		left   int64
	}{
		{granted, "mirror_reserve", 10, []string{"units", "record", "lines", "commit", "committed"}, 6},
		{granted, "mirror_reserve", 3, []string{"ledger", "record", "lines", "commit", "committed"}, -1},
		{released, "mirror_release", 10, []string{"ledger", "record", "lines", "commit", "committed"}, 10},
		{granted, "mirror_reserve_shared", 10, []string{"units", "record", "lines", "commit", "committed"}, 6},
		{released, "mirror_ledger_shared", 10, []string{"ledger", "record", "lines", "commit", "committed"}, 10},
	} {
		for _, point := range c.points {
			item++
			stockOne(t, b, item, c.stock)
			rec := truthRecord(t, fmt.Sprint("k", item), reservation.Held, time.Minute, line(item, 4))
			if c.left == 10 {
				b.mirror(granted(rec))
			}
			op := c.op(rec)
			shared := strings.HasSuffix(c.path, "_shared")
			killedAt(t, b, crashJob{Point: c.path + "." + point, Op: &op, Gathers: shared, Singly: shared})
			b.invariants()
			if j := b.mirror(op); j.State != op.Record.State || j.Stored == (point == "committed") {
				t.Errorf("%s of %d killed at %s, again: %+v", c.path, c.stock, point, j)
			}
			b.figures(item, c.left, c.stock)
		}
	}
	b.invariants()
}

// TestI5MarkedKilled: a marked reserve and a marked claim, killed with -9 at each of their steps: the outcome is there
// with its mark or not at all, and run again both are there once.
func TestI5MarkedKilled(t *testing.T) {
	t.Parallel()
	b := open(t, cutover)
	item := int64(0)
	for _, claim := range []bool{false, true} {
		points := []string{"reserve.units", "reserve.record", "reserve.lines", "reserve.mark", "reserve.commit", "reserve.committed"}
		if claim {
			points = []string{"claim.ledger", "claim.record", "claim.lines", "claim.entries", "claim.mark", "claim.commit", "claim.committed"}
		}
		for n, point := range points {
			item++
			stockOne(t, b, item, 10)
			b.reserve(fmt.Sprint("fills the pool", item), line(item, 1))
			req := request(t, fmt.Sprint("k", item), time.Hour, line(item, 4))
			job := crashJob{Point: point, Singly: true, ID: newID(t)}
			if claim {
				job.CutClaim = b.reserve(req.Key, line(item, 4)).Record.ID
				job.ID = job.CutClaim
			} else {
				job.Cut = &req
			}
			marks := len(b.marked())
			killedAt(t, b, job)
			b.invariants() // the row and its note agree
			last := n == len(points)-1
			if got := len(b.marked()) - marks; got != 0 && !last || got != 1 && last {
				t.Errorf("killed at %s: %d marks more", point, got)
			}
			job.Stamp = b.st
			if err := job.run(t.Context(), b.Store); err != nil {
				t.Errorf("killed at %s, again: %v", point, err)
			}
			rec, err := b.Get(t.Context(), shop, job.ID)
			if err != nil || !rec.Marked || len(b.marked())-marks != 1 || (rec.State == reservation.Claimed) != claim {
				t.Errorf("killed at %s, again: %+v, %v", point, rec, err)
			}
		}
	}
	b.invariants()
}

// TestAgreeKilled: MySQL's half of a grant, a yes and a no, killed at each step and asked again by another router.
func TestAgreeKilled(t *testing.T) {
	t.Parallel()
	b := open(t, handover)
	item := int64(0)
	for _, c := range []struct {
		stock  int64
		points []string
		want   reservation.Decision
		state  reservation.State
		left   int64
	}{
		{10, []string{"units", "record", "lines", "commit", "committed"}, reservation.Granted, reservation.Held, 6},
		{3, []string{"record", "commit", "committed"}, reservation.RejectedShort, reservation.Rejected, 3},
	} {
		for _, point := range c.points {
			item++
			stockOne(t, b, item, c.stock)
			rec := provisional(t, fmt.Sprint("k", item), time.Minute, line(item, 4))
			killedAt(t, b, crashJob{Point: "agree." + point, Agree: &rec})
			b.invariants()
			judged(t, b.agree(rec), c.want, c.state, point != "committed")
			b.figures(item, c.left, c.stock)
		}
	}
	b.invariants()
}

// TestRaiseKilled: the fence and its record change together, or not at all.
func TestRaiseKilled(t *testing.T) {
	t.Parallel()
	b := open(t, handover)
	a := reservation.AuditRecord{Action: reservation.ActionFlip, By: "ann"}
	for n, point := range []string{"fence", "audit", "commit", "committed"} {
		killedAt(t, b, crashJob{Point: "raise." + point, Raise: &a})
		next := stamp(b.st.Epoch+1, b.st.Stage)
		want, records := b.st, n
		if point == "committed" {
			want, records = next, n+1
		}
		recs, err := b.Audit(t.Context())
		if f := b.fence(); f.Stamp != want || err != nil || len(recs) != records {
			t.Errorf("killed at %s: fence %+v, %d records, %v", point, f.Stamp, len(recs), err)
		}
		if _, err := b.Raise(t.Context(), next, &a); err != nil {
			t.Error(err)
		}
		recs, err = b.Audit(t.Context())
		if f := b.fence(); f.Stamp != next || err != nil || len(recs) != n+1 || recs[n].After != next || recs[n].Before != b.st {
			t.Errorf("killed at %s, again: fence %+v, %+v, %v", point, f.Stamp, recs, err)
		}
		b.st = next
	}
}

func stockOne(t *testing.T, b *bench, item, quantity int64) {
	t.Helper()
	if _, _, err := b.Stock(t.Context(), b.st, []reservation.Stocking{{Bucket: bucket(item), Quantity: quantity}}); err != nil {
		t.Fatal(err)
	}
}
