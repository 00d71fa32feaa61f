// Command fetchcmd fetches the servers that the tests need, before the tests
// run, so that no test's time limit pays for a download.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/twinhold/twinhold/internal/devstack"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := devstack.Fetch(ctx, devstack.Options{
		MySQL: true, Redis: true,
		Progress: func(line string) { fmt.Fprintln(os.Stderr, line) },
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
