// Command testreport reads `go test -json` and prints what a person wants of it: a line a package, the whole output of
// what failed, every skipped test with its reason, the tables that tests log, and the sums. It ends with 1 if anything failed.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() { os.Exit(run(os.Stdin, os.Stdout)) }

// event is one line of `go test -json`.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

type report struct {
	out                     io.Writer
	output                  map[string]*strings.Builder // by package and test
	passed, failed, skipped int
	broken                  bool
}

func run(in io.Reader, out io.Writer) int {
	r := &report{out: out, output: map[string]*strings.Builder{}}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			r.line(line)
		}
		if err != nil {
			break // the end, or a pipe that broke: what go test itself says decides then
		}
	}
	r.printf("%d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
	if r.failed > 0 || r.broken || r.passed == 0 {
		return 1
	}
	return 0
}

// printf has nobody to tell if it fails.
func (r *report) printf(format string, args ...any) { _, _ = fmt.Fprintf(r.out, format, args...) }

func (r *report) line(line []byte) {
	var e event
	if json.Unmarshal(line, &e) != nil {
		r.printf("%s", line) // not from a test: a build's own words
		return
	}
	key := e.Package + "\x00" + e.Test
	switch e.Action {
	case "output":
		b := r.output[key]
		if b == nil {
			b = &strings.Builder{}
			r.output[key] = b
		}
		b.WriteString(e.Output)
		return
	case "build-output":
		r.printf("%s", e.Output)
		return
	case "build-fail":
		r.broken = true
		return
	case "pass", "fail", "skip":
	default:
		return
	}
	if e.Test == "" {
		r.endPackage(e, key)
	} else {
		r.endTest(e, key)
	}
	delete(r.output, key)
}

func (r *report) endTest(e event, key string) {
	text := ""
	if b := r.output[key]; b != nil {
		text = b.String()
	}
	switch e.Action {
	case "pass":
		r.passed++
		r.printf("%s", table(text))
	case "fail":
		r.failed++
		r.printf("%s", text)
	case "skip":
		r.skipped++
		r.printf("SKIP %s %s: %s\n", e.Package, e.Test, reason(text))
	}
}

// table is what a test has logged as a Markdown table.
func table(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "|") {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// reason is what a skipped test said: its output without the frame around it.
func reason(text string) string {
	var said []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			said = append(said, line)
		}
	}
	if len(said) == 0 {
		return "no reason given"
	}
	return strings.Join(said, " ")
}

func (r *report) endPackage(e event, key string) {
	switch e.Action {
	case "pass":
		r.printf("ok  \t%s\t%.3fs\n", e.Package, e.Elapsed)
	case "skip":
		r.printf("?   \t%s\t[no test files]\n", e.Package)
	case "fail":
		r.broken = true
		if b := r.output[key]; b != nil {
			r.printf("%s", b.String())
		}
		r.printf("FAIL\t%s\t%.3fs\n", e.Package, e.Elapsed)
	}
}
