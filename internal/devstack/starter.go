package devstack

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// writeStarter puts a script for a fetched tool (redis-cli, mysql) into the dev
// folder's bin: the tool itself does not start without the loader and libraries
// that were fetched with it. A tool that is not there gets none. The script
// finds the dev folder by its own place, so the folder can be moved.
func writeStarter(dev string, server *program, tool string) error {
	if _, err := os.Stat(tool); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	text := []byte(starter(dev, server, tool))
	path := filepath.Join(dev, "bin", filepath.Base(tool))
	if had, err := os.ReadFile(path); err == nil && bytes.Equal(had, text) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".starter-*") // whole or not at all: others may start one now
	if err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(0o755), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("devstack: %w", err)
	}
	return nil
}

func starter(dev string, server *program, tool string) string {
	below := func(path string) string { return strings.ReplaceAll(path, dev, "$dev") }
	return fmt.Sprintf(`#!/bin/sh
dev=$(cd "$(dirname "$0")/.." && pwd) || exit
exec "%s" --library-path "%s" "%s" "$@"
`, below(server.loader), below(server.libs), below(tool))
}
