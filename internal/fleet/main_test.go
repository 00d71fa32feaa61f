package fleet

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
)

func TestMain(m *testing.M) { devtest.Main(m, devtest.Needs{}) }

// program is the product as it is shipped, built once per test run, and skewed is the same with a clock that
// clockVariable turns. They are globals because every test runs the same.
var program, skewed built

type built struct {
	once sync.Once
	path string
	err  error
}

// binary builds cmd/twinhold, with the race detector where the tests have it, into the dev folder.
func (b *built) binary(tb testing.TB, name string, flags ...string) string {
	tb.Helper()
	b.once.Do(func() { b.path, b.err = build(name, flags...) })
	if b.err != nil {
		tb.Fatal(b.err)
	}
	return b.path
}

func build(name string, flags ...string) (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	root := devstack.ModuleRoot(wd)
	dev := os.Getenv(devstack.EnvDir)
	if dev == "" {
		dev = filepath.Join(root, ".dev")
	}
	out := filepath.Join(dev, "fleet", name)
	args := append([]string{"build", "-trimpath"}, flags...)
	if raceOn {
		out += "-race"
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, "-o", out, "./cmd/twinhold")...)
	cmd.Dir = root
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the binary: %w\n%s", err, text)
	}
	return out, nil
}

// seedOf is the plan's seed: TWINHOLD_SEED, else a new one; it is in the log.
func seedOf(tb testing.TB) uint64 {
	tb.Helper()
	seed := uint64(time.Now().UnixNano()) //nolint:gosec // any number will do
	if s := os.Getenv("TWINHOLD_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			tb.Fatalf("TWINHOLD_SEED: %v", err)
		}
		seed = n
	}
	tb.Logf("seed: TWINHOLD_SEED=%d", seed)
	return seed
}

func newRand(seed uint64, stream int) *rand.Rand {
	return rand.New(rand.NewPCG(seed, uint64(stream))) //nolint:gosec // a plan that can be repeated
}

// pause lets time pass in a plan: buyers think, and operators wait between two moves. It tells whether the context
// lasted. No test takes it for proof of anything.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// between draws a duration.
func between(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Int64N(int64(high-low)+1))
}
