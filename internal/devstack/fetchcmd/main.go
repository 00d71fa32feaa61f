// Command fetchcmd fetches what the tests need before they run, so that no
// test's time limit pays for a download: the servers, and with -cc a C compiler
// for the race detector. It prints the compiler's path if PATH has none.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/twinhold/twinhold/internal/devstack"
)

func main() { os.Exit(run()) }

func run() int {
	cc := flag.Bool("cc", false, "fetch a C compiler too if PATH has none, and print its path")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := fetch(ctx, *cc); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func fetch(ctx context.Context, cc bool) error {
	o := devstack.Options{
		MySQL: true, Redis: true,
		Progress: func(line string) { fmt.Fprintln(os.Stderr, line) },
	}
	if err := devstack.Fetch(ctx, o); err != nil || !cc {
		return err
	}
	path, err := devstack.Compiler(ctx, o)
	if err == nil && path != "" {
		fmt.Println(path)
	}
	return err
}
