package archtest

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

const module = "github.com/twinhold/twinhold"

// root is the module's root; this package lies two folders below it.
const root = "../.."

func TestProjectKeepsItsImportDirection(t *testing.T) {
	t.Parallel()
	found, err := Check(os.DirFS(root), module)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range found {
		t.Error(v)
	}
}

func TestPlantedImports(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		file, imports string
		allowed       bool
	}{
		{"legacyredis/a.go", "mysqlstore", false},
		{"legacyredis/a_test.go", "mysqlstore", false},
		{"mysqlstore/sub/a.go", "legacyredis", false},
		{"mysqlstore/a.go", "reservation", true},
		{"mysqlstore/a.go", "mysqlstore/migrations", true},
		{"mysqlstore/a_test.go", "reservation/storetest", true},
		{"reservation/a.go", "diff", false},
		{"reservation/a_test.go", "legacyredis", false},
		{"reservation/memstore/a.go", "reservation", true},
		{"reservation/memstore/a.go", "internal/invariant", false},
		{"reservation/storetest/a.go", "internal/invariant", true},
		{"reservation/storetest/a.go", "mysqlstore", false},
		{"shadow/a.go", "legacyredis", true},
		{"shadow/a.go", "diff", true},
		{"legacyredis/a.go", "shadow", false},
		{"diff/a.go", "router", false},
		{"killswitch/a.go", "rollout", false},
		{"router/a.go", "killswitch", true},
		{"router/a.go", "internal/server", false},
		{"router/a.go", "config", false},
		{"router/a.go", "api/twinhold/v1", false},
		{"config/a.go", "reservation", true},
		{"config/a.go", "router", false},
		{"api/twinhold/v1/a.go", "reservation", false},
		{"internal/server/a.go", "router", true},
		{"internal/server/a.go", "config", true},
		{"internal/server/a.go", "cmd/twinhold", false},
		{"internal/loadgen/a.go", "internal/devstack", true},
		{"internal/loadgen/a.go", "internal/devstack/devtest", false},
		{"internal/loadgen/a_test.go", "internal/devstack/devtest", true},
		{"internal/devstack/a.go", "reservation", false},
		{"internal/devstack/a_test.go", "mysqlstore", false},
		{"internal/devstack/devtest/a.go", "internal/devstack", true},
		{"internal/faultproxy/a.go", "internal/devstack", false},
		{"internal/faultproxy/a_test.go", "internal/devstack/devtest", true},
		{"internal/faultproxy/a_test.go", "router", false},
		{"mysqlstore/a.go", "internal/devstack", false},
		{"mysqlstore/a_test.go", "internal/devstack/devtest", true},
		{"mysqlstore/a_test.go", "internal/faultproxy", true},
		{"cmd/twinhold/a.go", "internal/devstack", true},
		{"cmd/twinhold/a.go", "config", true},
	} {
		found := check(t, c.file, `import _ "`+module+"/"+c.imports+`"`)
		if allowed := len(found) == 0; allowed != c.allowed {
			t.Errorf("%s imports %s: got %v", c.file, c.imports, found)
		}
	}
}

func TestOnlyATestApartSetsOneStoreAgainstTheOther(t *testing.T) {
	t.Parallel()
	for name, allowed := range map[string]bool{"legacyredis": false, "legacyredis_test": true} {
		text := "package " + name + "\n\nimport _ \"" + module + "/mysqlstore\"\n"
		found, err := Check(fstest.MapFS{"legacyredis/a_test.go": {Data: []byte(text)}}, module)
		if err != nil || (len(found) == 0) != allowed {
			t.Errorf("package %s: %v, %v", name, found, err)
		}
	}
}

func TestPlantedForeignImports(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		file, imports string
		allowed       bool
	}{
		{"reservation/a.go", "github.com/redis/go-redis/v9", false},
		{"reservation/a.go", "github.com/google/uuid", true},
		{"reservation/a.go", "encoding/json", true},
		{"reservation/a_test.go", "pgregory.net/rapid", true},
		{"reservation/storetest/a.go", "pgregory.net/rapid", true},
		{"mysqlstore/a.go", "github.com/go-sql-driver/mysql", true},
	} {
		found := check(t, c.file, `import _ "`+c.imports+`"`)
		if allowed := len(found) == 0; allowed != c.allowed {
			t.Errorf("%s imports %s: got %v", c.file, c.imports, found)
		}
	}
}

func TestPlantedSleeps(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]int{"router/a_test.go": 1, "router/a.go": 0} {
		for _, text := range []string{
			"import \"time\"\nfunc f() { time.Sleep(1) }",
			"import clock \"time\"\nvar f = clock.Sleep",
		} {
			if found := check(t, file, text); len(found) != want {
				t.Errorf("%s: got %v, want %d", file, found, want)
			}
		}
	}
	if found := check(t, "router/a_test.go", "import time \"example.com/fake\"\nfunc f() { time.Sleep(1) }"); len(found) != 0 {
		t.Errorf("somebody else's Sleep: %v", found)
	}
}

func TestWhatIsSkippedAndWhatIsBroken(t *testing.T) {
	t.Parallel()
	wrong := "import _ \"" + module + "/cmd/twinhold\""
	for _, name := range []string{"router/testdata/a.go", ".dev/a.go", "router/a.txt"} {
		if found := check(t, name, wrong); len(found) != 0 {
			t.Errorf("%s: %v", name, found)
		}
	}
	if _, err := Check(fstest.MapFS{"router/a.go": {Data: []byte("not Go")}}, module); err == nil {
		t.Error("a file that is not Go passed")
	}
}

func check(t *testing.T, name, body string) []Violation {
	t.Helper()
	found, err := Check(fstest.MapFS{name: {Data: []byte("package p\n\n" + body + "\n")}}, module)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Where packages come from is the business of each machine's configuration.
func TestNoFileNamesAPackageRegistry(t *testing.T) {
	t.Parallel()
	hosts := registryHosts(t)
	t.Logf("%d hosts in this machine's configuration", len(hosts))
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{".git", ".dev", "bin", "node_modules"}, d.Name()) {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || slices.Contains([]string{"go.sum", "package-lock.json"}, d.Name()) {
			return nil
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) { // gone since it was listed
			return nil
		}
		if err != nil {
			return err
		}
		for _, host := range hosts {
			if bytes.Contains(text, []byte(host)) {
				t.Errorf("%s names %s; take it from the system's configuration", path, host)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func registryHosts(t *testing.T) []string {
	t.Helper()
	proxy, err := exec.CommandContext(t.Context(), "go", "env", "GOPROXY").Output()
	if err != nil {
		t.Fatal(err)
	}
	text := string(proxy)
	files := []string{"/etc/apt/sources.list"}
	listed, err := filepath.Glob("/etc/apt/sources.list.d/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(files, listed...) {
		b, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if strings.HasPrefix(line, "URIs:") || strings.HasPrefix(line, "deb ") {
				text += line
			}
		}
	}
	var hosts []string
	for _, m := range regexp.MustCompile(`https?://(?:[^/@\s]*@)?([A-Za-z0-9.-]+)`).FindAllStringSubmatch(text, -1) {
		hosts = append(hosts, m[1])
	}
	slices.Sort(hosts)
	return slices.Compact(hosts)
}
