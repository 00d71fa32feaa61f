package legacyredis_test

import (
	"fmt"
	"testing"

	"github.com/twinhold/twinhold/legacyredis"
	"github.com/twinhold/twinhold/reservation"
)

// eval runs one of lua/'s scripts as the store does, for interleavings that nobody can wait for.
func (r *rig) eval(name string, st reservation.Stamp, args ...any) []any {
	r.tb.Helper()
	text, err := legacyredis.ScriptText(name)
	if err != nil {
		r.tb.Fatal(err)
	}
	argv := append([]any{fmt.Sprint(st.Epoch), st.Stage.String()}, args...)
	out, err := r.raw.Eval(r.tb.Context(), text, []string{r.key("fence")}, argv...).Slice()
	if err != nil {
		r.tb.Fatalf("script %s: %v", name, err)
	}
	return out
}

// pinIt is step 1 of a claim, alone.
func (r *rig) pinIt(st reservation.Stamp, id reservation.ID) {
	r.tb.Helper()
	if got := r.eval("pin", st, id.String(), "1", "force", "60000000", "a pin"); got[0] != "PINNED" {
		r.tb.Fatalf("pin: %v", got)
	}
}

// finishIt is step 3 of a claim of item 1, alone.
func (r *rig) finishIt(id reservation.ID, quantity, version int64) string {
	r.tb.Helper()
	change := fmt.Sprintf("%s:-%d:%d", bucket(1), quantity, version)
	return fmt.Sprint(r.eval("finish", stamp(), id.String(), "claimed", "1", "0", change)[0])
}

func permutations(n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var out [][]int
	for _, p := range permutations(n - 1) {
		for i := 0; i <= len(p); i++ {
			q := append(append(append([]int{}, p[:i]...), n-1), p[i:]...)
			out = append(out, q)
		}
	}
	return out
}

// Two claims and an adjustment of one bucket, finished in every order, each of them twice: at each moment available is
// what nobody holds or has bought, I4 holds, and in the end the version is the ledger's and nothing is remembered.
func TestI4FinishesInAnyOrder(t *testing.T) {
	t.Parallel()
	for _, order := range permutations(3) {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.stock(10)
			a, b := r.reserve("a", line(1, 3)).Record.ID, r.reserve("b", line(1, 2)).Record.ID
			r.pinIt(stamp(), a)
			r.pinIt(stamp(), b)
			onHand, held, available := int64(10), int64(5), int64(5)
			steps := []struct {
				do                      func()
				onHand, held, available int64
			}{
				{func() { r.finishIt(a, 3, 2) }, -3, -3, 0},
				{func() { r.finishIt(b, 2, 3) }, -2, -2, 0},
				{func() { r.eval("adjust_finish", stamp(), "1", "x", fmt.Sprintf("%s:4:4", bucket(1))) }, 4, 0, 4},
			}
			for n, i := range order {
				s := steps[i]
				onHand, held, available = onHand+s.onHand, held+s.held, available+s.available
				for range 2 {
					s.do()
					r.figures(1, available, held, onHand)
				}
				for _, earlier := range order[:n] {
					steps[earlier].do()
					r.figures(1, available, held, onHand)
				}
			}
			if got := r.raw.Get(t.Context(), r.key("ver:%s", bucket(1))).Val(); got != "4" {
				t.Errorf("the version is %s, want 4", got)
			}
			if n := r.raw.Exists(t.Context(), r.key("done:%s", bucket(1))).Val(); n != 0 {
				t.Error("versions are remembered that are all below the bucket's own")
			}
			r.noOrphans()
		})
	}
}

// Figures in the middle: older ones than a change that is in already do not take it out again; newer ones make the
// changes up to them past ones.
func TestI4FiguresBetweenFinishes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stock(10)
	a, b := r.reserve("a", line(1, 3)).Record.ID, r.reserve("b", line(1, 2)).Record.ID
	r.pinIt(stamp(), a)
	r.pinIt(stamp(), b)
	r.finishIt(b, 2, 3)
	r.figures(1, 5, 3, 8)
	apply := func(onHand, version int64, want int) {
		t.Helper()
		n, err := r.store.ApplyFigures(t.Context(), stamp(), []reservation.Figures{{Bucket: bucket(1), OnHand: onHand, Version: version}}, false)
		if err != nil || n != want {
			t.Fatalf("%d applied, %v; want %d", n, err, want)
		}
	}
	apply(7, 2, 0)
	r.figures(1, 5, 3, 8)
	apply(5, 3, 1) // a's units are still held: less than there is, until its finish gives them back
	r.figures(1, 2, 3, 5)
	r.finishIt(a, 3, 2)
	r.figures(1, 5, 0, 5)
	r.finishIt(b, 2, 3)
	r.figures(1, 5, 0, 5)
	r.noOrphans()
}

// An entry from before versions were kept says 0: the figures have it since long.
func TestFinishOfAnEntryWithoutAVersion(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stock(7) // 10, less the 3 of the old entry
	id := r.reserve("a", line(1, 3)).Record.ID
	r.pinIt(stamp(), id)
	r.finishIt(id, 3, 0)
	r.figures(1, 7, 0, 7)
}

// The whole way with a real ledger: many claims at once end in the ledger's own figures.
func TestI4ClaimsAtOnce(t *testing.T) {
	t.Parallel()
	b := newBook(t)
	b.stockBoth(100)
	var ids []reservation.ID
	for i := range 20 {
		ids = append(ids, b.reserve(fmt.Sprint(i), line(1, 2)).Record.ID)
	}
	errs := make(chan error, len(ids))
	for _, id := range ids {
		go func() {
			_, err := b.store.Claim(t.Context(), stamp(), 1, id)
			errs <- err
		}()
	}
	for range ids {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	b.figures(1, 60, 0, 60)
	if n := b.raw.Exists(t.Context(), b.key("done:%s", bucket(1))).Val(); n != 0 {
		t.Error("versions are still remembered")
	}
}
