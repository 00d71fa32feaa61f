package lab

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Result is what was shown.
type Result struct {
	Lab []Step `json:"lab"`
}

// Step is one step as it went.
type Step struct {
	Number int    `json:"step"`
	Name   string `json:"name"`
	// OK says that the server showed what the design says.
	OK bool `json:"ok"`
	// Facts are the server's figures, by name.
	Facts map[string]int64 `json:"facts"`
	Means string           `json:"means"`
	// Problems are the facts that are not as the design says.
	Problems []string `json:"problems,omitempty"`
	// Shown are the statements and the server's words, in order.
	Shown []string `json:"shown"`
}

// Failed are the numbers of the steps that showed something else.
func (r Result) Failed() []int {
	var failed []int
	for _, s := range r.Lab {
		if !s.OK {
			failed = append(failed, s.Number)
		}
	}
	return failed
}

// WriteText shows a step to a person.
func (s Step) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%d. %s\n", s.Number, s.Name)
	for _, line := range s.Shown {
		fmt.Fprintf(&b, "     %s\n", line)
	}
	for _, p := range s.Problems {
		fmt.Fprintf(&b, "     ! %s\n", p)
	}
	verdict := "ok"
	if !s.OK {
		verdict = "NOT AS THE DESIGN SAYS"
	}
	fmt.Fprintf(&b, "   %s: %s\n   => %s\n\n", verdict, s.facts(), s.Means)
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

func (s Step) facts() string {
	pairs := make([]string, 0, len(s.Facts))
	for _, name := range slices.Sorted(maps.Keys(s.Facts)) {
		pairs = append(pairs, fmt.Sprintf("%s %d", name, s.Facts[name]))
	}
	return strings.Join(pairs, ", ")
}

// account is a step while it goes.
type account struct{ Step }

// say tells the person something, as it is.
func (a *account) say(format string, args ...any) {
	a.Shown = append(a.Shown, fmt.Sprintf(format, args...))
}

// expect records a figure. One that is not as the design says is a problem of the step.
func (a *account) expect(name string, got, want int64) {
	a.Facts[name] = got
	if got != want {
		a.Problems = append(a.Problems, fmt.Sprintf("%s is %d; the design counts on %d", name, got, want))
	}
}
