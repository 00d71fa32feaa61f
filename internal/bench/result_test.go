package bench

import (
	"strings"
	"testing"
)

// What stands above a table fits what is in it.
func TestTheHeadSaysHowManyBuckets(t *testing.T) {
	t.Parallel()
	for bench, want := range map[string]string{
		Pool: "bench pool: 1 bucket, 3 rounds of 5s; median of the rounds\n",
		Cost: "bench cost: buckets as each scheme says, 3 rounds of 5s; median of the rounds\n", // carts of 749 lines have as many
	} {
		var out strings.Builder
		if err := (Result{Bench: bench, Buckets: 1, Runs: 3, Seconds: 5}).WriteText(&out); err != nil || !strings.HasPrefix(out.String(), want) {
			t.Errorf("%s: %v\n%s", bench, err, out.String())
		}
	}
	for _, s := range costSchemes() {
		if !strings.Contains(s.what, "bucket") {
			t.Errorf("scheme %s does not say how many buckets: %s", s.name, s.what)
		}
	}
}
