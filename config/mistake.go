package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Mistake is one thing that is wrong in a configuration, and what to write instead.
type Mistake struct {
	File string
	// Line and Column start at 1; both are 0 if the file could not be read at all.
	Line, Column int
	// Path names the key, as in pods[0].shops[1]; empty for the file as a whole.
	Path    string
	Message string
}

// String gives file:line:column: path: message.
func (m Mistake) String() string {
	var b strings.Builder
	b.WriteString(m.File)
	if m.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", m.Line, m.Column)
	}
	b.WriteString(": ")
	if m.Path != "" {
		b.WriteString(m.Path)
		b.WriteString(": ")
	}
	b.WriteString(m.Message)
	return b.String()
}

// Error holds every mistake of a configuration, in the order of the file.
type Error struct {
	Mistakes []Mistake
	cause    error // of a file that could not be read
}

// Error gives one mistake a line.
func (e *Error) Error() string {
	lines := make([]string, len(e.Mistakes))
	for i, m := range e.Mistakes {
		lines[i] = m.String()
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives the cause of a file that could not be read.
func (e *Error) Unwrap() error { return e.cause }

func sortMistakes(ms []Mistake) {
	slices.SortStableFunc(ms, func(a, b Mistake) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}
