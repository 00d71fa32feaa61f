package devstack

import (
	"fmt"
	"os"
	"strings"
)

// Error is a failure that a person can do something about. Its text ends with
// the hint on a line of its own.
type Error struct {
	// Doing is what was under way: "fetching MySQL".
	Doing string
	// Err is the cause.
	Err error
	// Hint is what to do now.
	Hint string
}

func (e *Error) Error() string {
	text := fmt.Sprintf("devstack: %s: %v", e.Doing, e.Err)
	if e.Hint != "" {
		text += "\nhint: " + e.Hint
	}
	return text
}

func (e *Error) Unwrap() error { return e.Err }

// tail is the end of a log, for an error text.
func tail(path string, from int64, lines int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	if from <= int64(len(b)) {
		b = b[from:]
	}
	return lastLines(string(b), lines)
}

func lastLines(text string, n int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(all) > n {
		all = all[len(all)-n:]
	}
	return strings.Join(all, "\n")
}
