package main

import (
	"testing"

	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/legacyredis"
)

func runRedis(t *testing.T, stack *devstack.Stack, args ...any) {
	t.Helper()
	c, err := legacyredis.NewClient(stack.Redis.URL(0), "looking-on")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Do(t.Context(), args...).Err(); err != nil {
		t.Fatal(err)
	}
}
