package reconcile

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestChecksAreDocumented: docs/reconcile.md has a row for every check, in their order, and for nothing else, and names
// the defaults that make one count.
func TestChecksAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "reconcile.md"))
	if err != nil {
		t.Fatal(err)
	}
	var documented []Check
	for line := range strings.Lines(string(page)) {
		name, rest, row := strings.Cut(strings.TrimPrefix(line, "| `"), "` | ")
		if !row || !strings.HasPrefix(line, "| `") {
			continue
		}
		documented = append(documented, Check(name))
		columns := strings.Split(strings.TrimSuffix(strings.TrimSpace(rest), " |"), " | ")
		if len(columns) != 4 || slices.ContainsFunc(columns, func(c string) bool { return strings.TrimSpace(c) == "" }) {
			t.Errorf("%s: what it looks at, why it cannot be, how it is mended and when it counts are %q", name, columns)
		}
		if want := fmt.Sprintf("from %d rounds on", defaultRounds); !strings.Contains(rest, want) {
			t.Errorf("%s does not count %q: %s", name, want, rest)
		}
		for check, after := range map[Check]float64{HoldOverdue: defaultHoldGrace.Minutes(), MarkOld: defaultMarkAge.Minutes()} {
			if want := fmt.Sprintf("%v minutes after", after); Check(name) == check && !strings.Contains(rest, want) {
				t.Errorf("%s does not count %q: %s", name, want, rest)
			}
		}
	}
	if !slices.Equal(documented, Checks()) {
		t.Errorf("docs/reconcile.md has\n%q, the code\n%q", documented, Checks())
	}
	source, err := os.ReadFile("finding.go")
	if err != nil {
		t.Fatal(err)
	}
	var declared []Check
	for _, m := range regexp.MustCompile(`(?m)^\t\w+ +Check = "(\w+)"$`).FindAllSubmatch(source, -1) {
		declared = append(declared, Check(m[1]))
	}
	if !slices.Equal(declared, Checks()) {
		t.Errorf("finding.go declares\n%q, Checks lists\n%q", declared, Checks())
	}
	for _, want := range []string{
		fmt.Sprintf("at most %v minutes behind", defaultMaxLag.Minutes()), fmt.Sprintf("At most %d findings", defaultMaxFindings),
		fmt.Sprintf("of %d,%03d rows at most and %v s", defaultPageRows/1000, defaultPageRows%1000, defaultPageTimeout.Seconds()),
		fmt.Sprintf("more than %d,%03d entries", shortJournal/1000, shortJournal%1000),
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("docs/reconcile.md does not say %q", want)
		}
	}
}
