// Command twinhold is the whole of Twinhold in one binary: the router, and everything a person does to it.
//
// It promises: results on stdout, progress and logs on stderr; exit 0 done or ready, 1 error, 2 not ready or
// refused, 3 inconclusive; and that every error ends with a line that says what to do now. It never prints a
// password.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	os.Exit(withSignals())
}

// withSignals ends a command by its context, so that it can stop what it started. A second signal ends it at once. A
// reader that goes away is an error of the write, and ends nothing by itself: what was made has to be removed.
func withSignals() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	signal.Ignore(syscall.SIGPIPE)
	quietRedis()
	return run(ctx, os.Args[1:], streams{out: os.Stdout, err: os.Stderr}, os.LookupEnv)
}

// untilHangup ends a command that leaves things behind where its terminal goes away. serve takes SIGHUP for a reload.
func untilHangup(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGHUP)
}
