package storetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// jobVariable tells a test binary that it is a child, and what to do.
const jobVariable = "TWINHOLD_STORETEST_JOB"

// Job is what a child process does: one operation, killed at a step of it.
type Job struct {
	Op         reservation.Op
	Point      string
	Stamp      reservation.Stamp
	Shop       int64
	ID         reservation.ID
	Request    reservation.Request
	Adjustment reservation.Adjustment
	Attach     map[string]string
}

// Open opens the harness's store again, in a child process. The store calls reached with the name of each step.
type Open func(ctx context.Context, attach map[string]string, reached func(point string)) (reservation.Store, error)

// Child does a job and ends the process, if this process is a child of the suite; else it returns. Call it first in
// TestMain, before anything is started:
//
//	func TestMain(m *testing.M) {
//		storetest.Child(openAgain)
//		devtest.Main(m, ...)
//	}
func Child(open Open) {
	text := os.Getenv(jobVariable)
	if text == "" {
		return
	}
	if err := child([]byte(text), open); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(childFailed)
	}
	os.Exit(childFinished)
}

// The exit codes of a child that was not killed.
const (
	childFinished = 40 // it did its job and never came to the step
	childFailed   = 41
)

// childTimeout ends a child that hangs.
const childTimeout = 60 * time.Second

func child(text []byte, open Open) error {
	var job Job
	if err := json.Unmarshal(text, &job); err != nil {
		return fmt.Errorf("read the job: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), childTimeout)
	defer cancel()
	s, err := open(ctx, job.Attach, func(point string) {
		if point == job.Point {
			killMyself()
		}
	})
	if err != nil {
		return fmt.Errorf("open the store again: %w", err)
	}
	return job.do(ctx, s)
}

// killMyself is kill -9: nothing is flushed, closed or undone. It does not return.
func killMyself() {
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
		panic(fmt.Sprintf("kill -9 myself: %v", err))
	}
	select {}
}

func (j Job) do(ctx context.Context, s reservation.Store) error {
	var err error
	switch j.Op {
	case reservation.OpReserve:
		var id reservation.ID
		if id, err = reservation.NewID(); err == nil {
			_, err = s.Reserve(ctx, j.Stamp, id, j.Request)
		}
	case reservation.OpClaim:
		_, err = s.Claim(ctx, j.Stamp, j.Shop, j.ID)
	case reservation.OpRelease:
		_, err = s.Release(ctx, j.Stamp, j.Shop, j.ID)
	case reservation.OpAdjust:
		_, err = s.Adjust(ctx, j.Stamp, j.Adjustment)
	case reservation.OpExpire:
		_, err = s.Sweep(ctx, j.Stamp, 100)
	default:
		err = fmt.Errorf("no such job: %s", j.Op)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", j.Op, err)
	}
	// Steps in the background (a finish) get their time before the child gives up.
	type settler interface {
		Settle(ctx context.Context) error
	}
	if b, ok := s.(settler); ok {
		return b.Settle(ctx)
	}
	return nil
}

// errNotReached: the child did its job without coming to the step.
var errNotReached = errors.New("the step was never reached")

// runChild runs the test binary again as a child, and returns nil once it has been killed at the step.
func runChild(ctx context.Context, job Job) error {
	text, err := json.Marshal(job)
	if err != nil {
		return fmt.Errorf("write the job: %w", err)
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the test binary: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, childTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, "-test.run=^$")
	cmd.Env = append(os.Environ(), jobVariable+"="+string(text))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	var exit *exec.ExitError
	if err == nil {
		return fmt.Errorf("the test binary ran its tests: call storetest.Child first in TestMain\n%s", out.String())
	}
	if !errors.As(err, &exit) {
		return fmt.Errorf("run the child: %w", err)
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("the child hung: %w\n%s", context.Cause(ctx), out.String())
	case ok && status.Signaled() && status.Signal() == syscall.SIGKILL:
		return nil
	case exit.ExitCode() == childFinished:
		return errNotReached
	default:
		return fmt.Errorf("the child ended with %w\n%s", err, out.String())
	}
}
