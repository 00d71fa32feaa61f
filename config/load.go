package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v4"
)

// Bounds of what is read: a configuration that is larger is somebody's mistake.
const (
	maxFile   = 4 << 20
	maxSecret = 64 << 10
)

// Load reads a configuration file, with the process's environment. Its error is an *Error.
func Load(path string) (*Config, error) { return LoadEnv(path, os.LookupEnv) }

// LoadEnv is Load with a stand-in for the environment. Its error is an *Error.
func LoadEnv(path string, getenv func(string) (string, bool)) (*Config, error) {
	data, err := readRegular(path, maxFile)
	if err != nil {
		return nil, &Error{Mistakes: []Mistake{{File: path, Message: err.Error()}}, cause: err}
	}
	return Parse(data, path, getenv)
}

// Parse reads a configuration from memory. name is its file name: it stands before every mistake, and relative
// paths in the file are relative to its folder. getenv is os.LookupEnv or a stand-in. Its error is an *Error.
func Parse(data []byte, name string, getenv func(string) (string, bool)) (*Config, error) {
	readFile := func(path string) ([]byte, error) { return readRegular(path, maxSecret) }
	return parse(data, name, getenv, readFile)
}

func parse(data []byte, name string, getenv func(string) (string, bool), readFile func(string) ([]byte, error)) (*Config, error) {
	r := newReader(name, getenv, readFile)
	c := Default()
	if doc, ok := r.document(data); ok {
		r.config(doc, &c)
		if doc.Kind == yaml.MappingNode {
			r.check(&c)
		}
	}
	if len(r.mistakes) > 0 {
		sortMistakes(r.mistakes)
		return nil, &Error{Mistakes: r.mistakes}
	}
	c.ranges = sortRanges(c.Pods)
	return &c, nil
}

func newReader(name string, getenv func(string) (string, bool), readFile func(string) ([]byte, error)) *reader {
	return &reader{
		file: name, getenv: getenv, readFile: readFile,
		at: make(map[string]place), known: make(map[string]bool),
	}
}

// document gives the one document of the file. The decoder has to be asked again to find out that there is a
// second one: its own single-document option accepts it.
func (r *reader) document(data []byte) (*yaml.Node, bool) {
	loader, err := yaml.NewLoader(bytes.NewReader(data))
	if err != nil {
		r.syntax(err)
		return nil, false
	}
	var doc, second yaml.Node
	switch err := loader.Load(&doc); {
	case errors.Is(err, io.EOF):
		r.mistake(place{1, 1}, "", "the file is empty: start with version: 1 and pods:")
		return nil, false
	case err != nil:
		r.syntax(err)
		return nil, false
	case doc.Kind != yaml.DocumentNode || len(doc.Content) != 1:
		r.mistake(place{1, 1}, "", "the file is empty: start with version: 1 and pods:")
		return nil, false
	}
	switch err := loader.Load(&second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		r.syntax(err)
	default:
		r.wrong(&second, "", "a second document begins here: keep one document in the file")
	}
	return doc.Content[0], true
}

// syntax reports what the YAML parser says, where it says it.
func (r *reader) syntax(err error) {
	var le *yaml.LoadError
	if !errors.As(err, &le) {
		r.mistake(place{1, 1}, "", "this is not YAML: %v", err)
		return
	}
	at := place{max(le.Mark.Line, 1), max(le.Mark.Column, 1)}
	r.mistake(at, "", "this is not YAML: %s", le.Message)
}

// fileError says what is wrong with a file without naming it: its name may come from a variable.
type fileError struct {
	reason string
	cause  error
}

// Error gives the reason.
func (e *fileError) Error() string { return e.reason }

// Unwrap gives the cause.
func (e *fileError) Unwrap() error { return e.cause }

func unreadable(err error) error {
	var pe *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &fileError{"is not there: name another, or create it", err}
	case errors.As(err, &pe):
		return &fileError{"cannot be read: " + pe.Err.Error(), err}
	default:
		return &fileError{"cannot be read", err}
	}
}

// readRegular reads a regular file up to a bound, so that a device or a pipe never hangs a check.
func readRegular(path string, most int64) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, unreadable(err)
	case !info.Mode().IsRegular():
		return nil, errors.New("is not a regular file: name a file")
	case info.Size() > most:
		return nil, fmt.Errorf("has %d bytes: %d at most", info.Size(), most)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, unreadable(err)
	}
	return data, nil
}

// beside makes a path of the file relative to the file's own folder.
func (r *reader) beside(path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(r.file), path)
}
