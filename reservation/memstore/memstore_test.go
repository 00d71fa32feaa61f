package memstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/reservation/memstore"
)

func TestNewRefusesWrongOptions(t *testing.T) {
	t.Parallel()
	for want, o := range map[string]memstore.Options{
		"Clock is missing":      {},
		"is not a store":        {Clock: time.Now, Truth: 9},
		"Late is not a policy":  {Clock: time.Now, Late: 9},
		"Retention -1ns is neg": {Clock: time.Now, Retention: -1},
	} {
		if _, err := memstore.New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v; want %q", err, want)
		}
	}
}

// TestFenceIsMadeOnce: the first fence stands, and a store that holds reservations gets none by InitFence.
func TestFenceIsMadeOnce(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s, err := memstore.New(memstore.Options{Clock: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	if empty, err := s.Empty(ctx); err != nil || !empty {
		t.Fatalf("a new store: empty %t, %v", empty, err)
	}
	first := reservation.Stamp{Epoch: 3, Stage: reservation.Shadow}
	for _, st := range []reservation.Stamp{first, {Epoch: 9, Stage: reservation.Cutover}} {
		if f, err := s.InitFence(ctx, st); err != nil || f.Stamp != first {
			t.Fatalf("InitFence(%+v) = %+v, %v", st, f, err)
		}
	}
	if empty, err := s.Empty(ctx); err != nil || empty {
		t.Fatalf("a store with a fence: empty %t, %v", empty, err)
	}
	if f, err := s.ReadFence(ctx); err != nil || f.Stamp != first {
		t.Fatalf("ReadFence = %+v, %v", f, err)
	}
}
