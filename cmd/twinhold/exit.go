package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// The exit codes, the same in every command.
const (
	exitDone         = 0 // done, or ready
	exitFailed       = 1 // an error
	exitRefused      = 2 // not ready, or refused
	exitInconclusive = 3
)

// exitError ends the command with a code, and says what to do now.
type exitError struct {
	code int
	err  error
	hint string
}

// Error gives the message without the hint.
func (e *exitError) Error() string { return e.err.Error() }

// Unwrap gives the cause.
func (e *exitError) Unwrap() error { return e.err }

// print writes the message and the hint. There is nobody left to tell if that fails.
func (e *exitError) print(w io.Writer) {
	hint := e.hint
	if hint == "" {
		hint = "see twinhold --help"
	}
	_, _ = fmt.Fprintf(w, "error: %v\nhint: %s\n", e.err, hint)
}

// usageError is a command line that makes no sense.
func usageError(cmd *cobra.Command, err error) error {
	return &exitError{code: exitFailed, err: err, hint: fmt.Sprintf("see %s --help", cmd.CommandPath())}
}
