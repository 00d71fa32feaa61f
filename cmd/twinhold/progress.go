package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
)

// progress shows what a long command is doing: one live line on a terminal, plain lines elsewhere. It writes to stderr.
type progress struct {
	mu       sync.Mutex
	w        io.Writer
	terminal bool
	live     bool // a live line is on the screen
	last     time.Time
	tenth    int
}

func newProgress(w io.Writer) *progress {
	return &progress{w: w, terminal: isTerminal(w), tenth: -1}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
}

// phase begins something new.
func (p *progress) phase(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	p.tenth = -1
	p.write("%s\n", what)
}

// bar shows how far the present phase has come.
func (p *progress) bar(done, total int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if total <= 0 {
		return
	}
	if !p.terminal {
		if tenth := 10 * done / total; tenth > p.tenth {
			p.tenth = tenth
			p.write("  %d of %d (%d%%)\n", done, total, 100*done/total)
		}
		return
	}
	if done < total && time.Since(p.last) < 50*time.Millisecond {
		return
	}
	p.last, p.live = time.Now(), true
	const width = 40
	full := width * done / total
	p.write("\r  [%s%s] %3d%%  %d of %d", strings.Repeat("=", full), strings.Repeat(" ", width-full), 100*done/total, done, total)
}

// end leaves the screen clean.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
}

func (p *progress) clear() {
	if p.live {
		p.write("\n")
		p.live = false
	}
}

// write has nobody to tell if it fails: progress is only for the eye.
func (p *progress) write(format string, args ...any) { _, _ = fmt.Fprintf(p.w, format, args...) }

// Write takes log lines, so that they do not tear the live line.
func (p *progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	n, err := p.w.Write(b)
	if err != nil {
		return n, fmt.Errorf("write a log line: %w", err)
	}
	return n, nil
}

// logger logs warnings and worse beside the progress.
func (p *progress) logger() *slog.Logger {
	return slog.New(&atMost{Handler: slog.NewTextHandler(p, &slog.HandlerOptions{Level: slog.LevelWarn}), n: map[string]int{}, mu: &sync.Mutex{}})
}

// maxLogLines is how often one message is shown; a replay of an hour could otherwise log it a million times.
const maxLogLines = 5

// atMost shows each message a few times and then no more.
type atMost struct {
	slog.Handler
	mu *sync.Mutex
	n  map[string]int
}

// Handle passes a record on unless its message was shown often enough.
func (h *atMost) Handle(ctx context.Context, r slog.Record) error {
	h.mu.Lock()
	h.n[r.Message]++
	n := h.n[r.Message]
	h.mu.Unlock()
	if n > maxLogLines {
		return nil
	}
	if n == maxLogLines {
		r.AddAttrs(slog.String("more", "this message is not shown again"))
	}
	return h.Handler.Handle(ctx, r) //nolint:wrapcheck // a handler's own contract
}

// WithAttrs keeps the count.
func (h *atMost) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &atMost{Handler: h.Handler.WithAttrs(attrs), mu: h.mu, n: h.n}
}

// WithGroup keeps the count.
func (h *atMost) WithGroup(name string) slog.Handler {
	return &atMost{Handler: h.Handler.WithGroup(name), mu: h.mu, n: h.n}
}
