// Package podsettest gives tests pods on private servers.
//
// It promises that servers and stores are gone at the end of the test.
package podsettest

import (
	"context"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/devpods"
	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/internal/podset"
)

// Pods sets pods up in shadow, on servers that are this test's alone, with payment bounds of seconds.
func Pods(tb testing.TB, pods int) (*devpods.Pods, *devstack.Stack) {
	tb.Helper()
	stack := devtest.Private(tb, devstack.Options{MySQL: true, Redis: true})
	p, err := devpods.Start(tb.Context(), devpods.Options{Pods: pods, Short: true, Stack: stack})
	if err != nil {
		tb.Fatal(err)
	}
	return p, stack
}

// closing bounds how long a set may take to close.
const closing = 20 * time.Second

// Open opens the pods. They are closed at the end of the test.
func Open(tb testing.TB, pods *devpods.Pods, opt podset.Options) *podset.Set {
	tb.Helper()
	set, err := podset.Open(tb.Context(), pods.Config, opt)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closing)
		defer cancel()
		if err := set.Close(ctx); err != nil {
			tb.Error(err)
		}
	})
	return set
}
