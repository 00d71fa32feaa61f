package fleet

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// clockVariable is by how many seconds the clock of a skewed build is off.
const clockVariable = "TWINHOLD_TEST_CLOCK_OFF"

// skewedBinary builds the product on a time package whose Now is off by what the environment says: everything that the
// process takes for the time is, ids, deadlines and logs. Its monotonic clock is as it was.
func skewedBinary(tb testing.TB) string {
	tb.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		tb.Fatal(err)
	}
	source := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	text, err := os.ReadFile(source)
	if err != nil {
		tb.Fatal(err)
	}
	const now = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if strings.Count(string(text), now) != 1 {
		tb.Fatalf("%s reads the clock otherwise than this test knows: adapt it", source)
	}
	off := strings.Replace(string(text), now, now+"\tsec += testOff\n", 1) + `
var testOff = func() int64 {
	text, _ := syscall.Getenv("` + clockVariable + `")
	sign, n := int64(1), int64(0)
	for _, c := range []byte(text) {
		if c == '-' {
			sign = -1
			continue
		}
		n = 10*n + int64(c-'0')
	}
	return sign * n
}()
`
	off = strings.Replace(off, "import (", "import (\n\t\"syscall\"", 1)
	dir := tb.TempDir()
	file, overlay := filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json")
	page, err := json.Marshal(map[string]map[string]string{"Replace": {source: file}})
	if err != nil {
		tb.Fatal(err)
	}
	for name, content := range map[string][]byte{file: []byte(off), overlay: page} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	return skewed.binary(tb, "twinhold-skewed", "-overlay", overlay)
}
