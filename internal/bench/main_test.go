package bench

import (
	"os"
	"testing"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
)

// asWorker in the environment makes the test binary one process of callers.
const asWorker = "TWINHOLD_TEST_BENCH_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(asWorker) != "" {
		serveAsWorker()
	}
	devtest.Main(m, devtest.Needs{MySQL: true, Redis: true})
}
