package fleet

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// launcher starts processes from one OS thread that lives as long as the test: Linux ends a child when the thread that
// forked it ends, so that a test run that is killed leaves no router behind.
type launcher struct {
	jobs chan func()
	wg   sync.WaitGroup
}

func newLauncher(tb testing.TB) *launcher {
	l := &launcher{jobs: make(chan func())}
	l.wg.Go(func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for job := range l.jobs {
			job()
		}
	})
	tb.Cleanup(func() {
		close(l.jobs)
		l.wg.Wait()
	})
	return l
}

func (l *launcher) start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = dieWithParent()
	started := make(chan error, 1)
	l.jobs <- func() { started <- cmd.Start() }
	return <-started
}

// router is one twinhold serve. It keeps its name, configuration and log across restarts; its addresses change.
type router struct {
	name   string
	bin    string
	env    []string // nil: the test's own
	config string
	log    string
	launch *launcher

	mu     sync.Mutex
	cmd    *exec.Cmd
	done   chan struct{} // closed when the process has been waited for
	ending bool          // somebody has ended it on purpose
	data   atomic.Pointer[string]
	admin  atomic.Pointer[string]
}

var serving = regexp.MustCompile(`msg=serving data=(\S+) admin=(\S+)`)

// serveWithin is how long a router may take to serve.
const serveWithin = 30 * time.Second

// start starts the router and waits until it serves. Meanwhile buyers find nobody at its old address.
func (r *router) start() error {
	from, done, err := r.launchOnce()
	if err != nil {
		return fmt.Errorf("start router %s: %w", r.name, err)
	}
	return r.awaitServing(from, done)
}

// launchOnce starts the process. It gives where its part of the log begins.
func (r *router) launchOnce() (from int64, done chan struct{}, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out, err := os.OpenFile(r.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, nil, err
	}
	defer out.Close()
	if from, err = out.Seek(0, io.SeekEnd); err != nil {
		return 0, nil, err
	}
	cmd := exec.Command(r.bin, "serve", "--config", r.config)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.Env = filepath.Dir(r.config), out, out, r.env
	if err := r.launch.start(cmd); err != nil {
		return 0, nil, err
	}
	done = make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended is in the log and in its state
		close(done)
	}()
	r.cmd, r.done, r.ending = cmd, done, false
	return from, done, nil
}

func (r *router) awaitServing(from int64, done chan struct{}) error {
	deadline := time.NewTimer(serveWithin)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if m := serving.FindSubmatch(tailFrom(r.log, from)); m != nil {
			data, admin := string(m[1]), string(m[2])
			r.data.Store(&data)
			r.admin.Store(&admin)
			return nil
		}
		select {
		case <-done:
			return fmt.Errorf("router %s ended at once:\n%s", r.name, tailFrom(r.log, from))
		case <-deadline.C:
			return fmt.Errorf("router %s does not serve after %s:\n%s", r.name, serveWithin, tailFrom(r.log, from))
		case <-tick.C:
		}
	}
}

func tailFrom(file string, from int64) []byte {
	text, err := os.ReadFile(file)
	if err != nil || int64(len(text)) < from {
		return nil
	}
	return text[from:]
}

// signal sends a signal to a router that runs.
func (r *router) signal(sig syscall.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.runningLocked() {
		return fmt.Errorf("router %s is not running", r.name)
	}
	if sig != syscall.SIGSTOP && sig != syscall.SIGCONT {
		r.ending = true
	}
	return r.cmd.Process.Signal(sig)
}

func (r *router) runningLocked() bool {
	if r.cmd == nil {
		return false
	}
	select {
	case <-r.done:
		return false
	default:
		return true
	}
}

func (r *router) running() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.runningLocked()
}

// pause stops the process as it stands; resume lets it go on.
func (r *router) pause() error  { return r.signal(syscall.SIGSTOP) }
func (r *router) resume() error { return r.signal(syscall.SIGCONT) }

// kill9 ends it as a crash would, and waits until it is gone.
func (r *router) kill9() error {
	if err := r.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-r.done
	return nil
}

// termWithin is how long a router may take to answer what it took.
const termWithin = 60 * time.Second

// term ends it as an orchestrator does. It is an error if it does not exit 0.
func (r *router) term() error {
	if !r.running() {
		return fmt.Errorf("router %s is not running", r.name)
	}
	if err := errors.Join(r.signal(syscall.SIGCONT), r.signal(syscall.SIGTERM)); err != nil {
		return err
	}
	t := time.NewTimer(termWithin)
	defer t.Stop()
	select {
	case <-r.done:
	case <-t.C:
		return errors.Join(fmt.Errorf("router %s does not end within %s of SIGTERM", r.name, termWithin), r.kill9())
	}
	if code := r.cmd.ProcessState.ExitCode(); code != 0 {
		return fmt.Errorf("router %s: exit code %d after SIGTERM", r.name, code)
	}
	return nil
}

// end is for the end of a test: gone, whatever state it is in.
func (r *router) end() {
	if r.running() {
		_ = r.kill9() // it was running: only its own end can be in the way
	}
}

// crashed tells whether the process ended although nobody ended it.
func (r *router) crashed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cmd != nil && !r.runningLocked() && !r.ending
}

// logShown is how many lines of a log a failure shows.
const logShown = 60

var stamped = regexp.MustCompile(`^time=\S+ `)

// complaints are the lines of the log that a person should read: warnings, errors, panics and races. A line that says
// the same as others is shown once.
func (r *router) complaints() string {
	text, err := os.ReadFile(r.log)
	if err != nil {
		return err.Error()
	}
	var kept []string
	times := map[string]int{}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "level=INFO") || strings.Contains(line, "level=DEBUG") {
			continue
		}
		said := stamped.ReplaceAllString(line, "")
		if times[said]++; times[said] == 1 {
			kept = append(kept, line)
		}
	}
	for i, line := range kept {
		if n := times[stamped.ReplaceAllString(line, "")]; n > 1 {
			kept[i] = fmt.Sprintf("%s (%d times)\n", strings.TrimSuffix(line, "\n"), n)
		}
	}
	if left := len(kept) - logShown; left > 0 {
		kept = append(append(kept[:logShown/2:logShown/2], fmt.Sprintf("... %d lines ...\n", left)), kept[len(kept)-logShown/2:]...)
	}
	return strings.Join(kept, "")
}

// broken names what no log of a router may hold.
func (r *router) broken() error {
	text, err := os.ReadFile(r.log)
	if err != nil {
		return err
	}
	for _, sign := range []string{"WARNING: DATA RACE", "panic:", "fatal error:", "a call panicked"} {
		if i := bytes.Index(text, []byte(sign)); i >= 0 {
			return fmt.Errorf("router %s: %s", r.name, text[i:min(len(text), i+4000)])
		}
	}
	return nil
}
