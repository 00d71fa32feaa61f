package mysqlstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

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
	s, err := openAgain(ctx, map[string]string{"dsn": job.DSN, "pod": job.Pod}, func(point string) {
		if point == job.Point {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	})
	if err != nil {
		return err
	}
	if job.Pin != nil {
		_, err = s.(reservation.Ledger).Deduct(ctx, job.Stamp, *job.Pin)
		return err
	}
	_, err = s.(reservation.Mirror).Mirror(ctx, job.Stamp, *job.Op)
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
	} {
		for _, point := range c.points {
			item++
			stockOne(t, b, item, c.stock)
			rec := truthRecord(t, fmt.Sprint("k", item), reservation.Held, time.Minute, line(item, 4))
			if c.path == "mirror_release" {
				b.mirror(granted(rec))
			}
			op := c.op(rec)
			killedAt(t, b, crashJob{Point: c.path + "." + point, Op: &op})
			b.invariants()
			if j := b.mirror(op); j.State != op.Record.State || j.Stored == (point == "committed") {
				t.Errorf("%s of %d killed at %s, again: %+v", c.path, c.stock, point, j)
			}
			b.figures(item, c.left, c.stock)
		}
	}
	b.invariants()
}

func stockOne(t *testing.T, b *bench, item, quantity int64) {
	t.Helper()
	if _, _, err := b.Stock(t.Context(), b.st, []reservation.Stocking{{Bucket: bucket(item), Quantity: quantity}}); err != nil {
		t.Fatal(err)
	}
}
