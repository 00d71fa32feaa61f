package config

import (
	"context"
	"errors"
	"log/slog"
	"sync"
)

// Reloader re-reads a configuration while its router serves. It keeps what the router runs by.
type Reloader struct {
	path   string
	getenv func(string) (string, bool)
	apply  Apply
	log    *slog.Logger

	one sync.Mutex // one reload at a time
	mu  sync.Mutex
	now *Config
}

// Apply makes a router run by next, which has only what can be taken now. changes are all that the file asks for,
// also what is not taken; there may be none: what a file names may have changed. If it fails, the router runs by what
// it ran by before.
type Apply func(ctx context.Context, next *Config, changes []Change) error

// NewReloader makes one for a router that runs by now, which was read from path. getenv is os.LookupEnv or a stand-in.
func NewReloader(now *Config, path string, getenv func(string) (string, bool), log *slog.Logger, apply Apply) *Reloader {
	return &Reloader{path: path, getenv: getenv, apply: apply, log: log, now: now}
}

// Current is the configuration by which the router runs.
func (r *Reloader) Current() *Config {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// Reload reads the file and takes what can be taken. It logs every change, and every mistake: then nothing is taken.
func (r *Reloader) Reload(ctx context.Context) {
	r.one.Lock()
	defer r.one.Unlock()
	old := r.Current()
	next, err := LoadEnv(r.path, r.getenv)
	if err != nil {
		r.refused(ctx, err)
		return
	}
	merged, changes := merge(old, next)
	if err := r.apply(ctx, merged, changes); err != nil {
		r.log.ErrorContext(ctx, "the configuration is not taken, the old one stays", "file", r.path, "err", err)
		return
	}
	r.mu.Lock()
	r.now = merged
	r.mu.Unlock()
	for _, c := range changes {
		level := slog.LevelInfo
		if c.Takes != Now {
			level = slog.LevelWarn
		}
		attrs := []any{"old", c.Old, "new", c.New, "taken", c.Takes.String()}
		if c.Note != "" {
			attrs = append(attrs, "note", c.Note)
		}
		r.log.Log(ctx, level, "configuration: "+c.Path, attrs...)
	}
	r.log.InfoContext(ctx, "the configuration was read again", "file", r.path, "changes", len(changes))
}

func (r *Reloader) refused(ctx context.Context, err error) {
	r.log.ErrorContext(ctx, "the configuration is not taken, the old one stays: run twinhold config check", "file", r.path)
	var mistakes *Error
	if !errors.As(err, &mistakes) {
		r.log.ErrorContext(ctx, "configuration: "+err.Error())
		return
	}
	for _, m := range mistakes.Mistakes {
		r.log.ErrorContext(ctx, "configuration: "+m.String())
	}
}
