package devstack

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	startTimeout = 90 * time.Second
	stopTimeout  = 20 * time.Second
	portAttempts = 20
)

var (
	errPortTaken = errors.New("port taken")
	errClosed    = errors.New("devstack: the stack is closed")
)

// Server is one private server process with its data folder and port, both of
// which it keeps across Stop, Kill and Restart.
type Server struct {
	name   string
	dir    string
	launch *launcher

	// command is the program and its arguments for the server's port.
	command func(port int) (string, []string)
	// ready fails until the server answers, and is the process with this pid:
	// a stranger on the same port is not ready.
	ready func(ctx context.Context, pid int) error

	mu   sync.Mutex   // held through a whole start or stop
	over bool         // the stack is closed
	port atomic.Int64 // chosen once, kept ever after
	proc atomic.Pointer[process]
}

// process is a started command that somebody waits for.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed once it has been waited for
}

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Addr is host and port on loopback.
func (s *Server) Addr() string {
	return net.JoinHostPort("127.0.0.1", strconv.FormatInt(s.port.Load(), 10))
}

// running is the process that runs, nil if none does.
func (s *Server) running() *process {
	if p := s.proc.Load(); p != nil && p.running() {
		return p
	}
	return nil
}

// PID is the process id, 0 while the server is not running.
func (s *Server) PID() int {
	if p := s.running(); p != nil {
		return p.cmd.Process.Pid
	}
	return 0
}

// Log is the path of the server's log file.
func (s *Server) Log() string { return filepath.Join(s.dir, s.name+".log") }

// DataDir is the server's data folder.
func (s *Server) DataDir() string { return filepath.Join(s.dir, "data") }

// Start starts a server that was stopped or killed, on its port and data, and
// returns when it answers. It does nothing if the server runs.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return errClosed
	}
	if s.running() != nil {
		return nil
	}
	return s.start(ctx)
}

// Stop shuts the server down in good order, a paused one too. One that takes
// more than 20 s is killed, and that is an error.
func (s *Server) Stop() error { return s.end(syscall.SIGTERM) }

// Kill ends the server with SIGKILL, as a crash would.
func (s *Server) Kill() error { return s.end(syscall.SIGKILL) }

// Pause stops the process with SIGSTOP: connections stay open, nothing answers.
func (s *Server) Pause() error { return s.signal(syscall.SIGSTOP) }

// Resume lets a paused process go on.
func (s *Server) Resume() error { return s.signal(syscall.SIGCONT) }

// Restart stops the server in good order and starts it again, with the same
// port and data.
func (s *Server) Restart(ctx context.Context) error {
	if err := s.Stop(); err != nil {
		return err
	}
	return s.Start(ctx)
}

func (s *Server) signal(sig syscall.Signal) error {
	p := s.running()
	if p == nil {
		return fmt.Errorf("devstack: %s is not running", s.name)
	}
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("devstack: %s: %w", s.name, err)
	}
	return nil
}

func (s *Server) end(sig syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.running()
	if p == nil {
		return nil
	}
	if !p.end(sig) {
		return fmt.Errorf("devstack: %s did not end within %s and was killed", s.name, stopTimeout)
	}
	return nil
}

// retire kills the server for good.
func (s *Server) retire() error {
	s.mu.Lock()
	s.over = true
	s.mu.Unlock()
	return s.Kill()
}

// end signals the process, waits until it is gone, and reports whether the
// signal was enough.
func (p *process) end(sig syscall.Signal) bool {
	_ = p.cmd.Process.Signal(sig) // fails only if it has just ended by itself
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	timeout := time.NewTimer(stopTimeout)
	defer timeout.Stop()
	select {
	case <-p.done:
		return true
	case <-timeout.C:
	}
	_ = p.cmd.Process.Kill()
	<-p.done
	return false
}

// start launches the server, on another port if the first one is taken in the
// moment between choosing and binding; a server that has had a port keeps it.
func (s *Server) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	keep := s.port.Load() != 0
	var err error
	for range portAttempts {
		if !keep {
			port, err := freePort()
			if err != nil {
				return err
			}
			s.port.Store(int64(port))
		}
		if err = s.launchOnce(ctx); !errors.Is(err, errPortTaken) {
			return err
		}
		if keep && !wait(ctx, 100*time.Millisecond) {
			break
		}
	}
	return err
}

// launchOnce starts the process and waits until it answers or ends.
func (s *Server) launchOnce(ctx context.Context) error {
	logged := fileSize(s.Log())
	out, err := os.OpenFile(s.Log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	defer out.Close()
	path, args := s.command(int(s.port.Load()))
	cmd := exec.Command(path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, out, out
	if err := s.launch.start(cmd); err != nil {
		return fmt.Errorf("devstack: starting %s: %w", s.name, err)
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended is in the log
		close(p.done)
	}()
	if err := s.awaitReady(ctx, p, logged); err != nil {
		p.end(syscall.SIGKILL)
		return err
	}
	s.proc.Store(p)
	return nil
}

func (s *Server) awaitReady(ctx context.Context, p *process, logged int64) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		select {
		case <-p.done:
			return s.startFailure(errors.New("it ended at once"), logged)
		case <-ctx.Done():
			return s.startFailure(errors.Join(context.Cause(ctx), last), logged)
		case <-tick.C:
		}
		if last = s.ready(ctx, p.cmd.Process.Pid); last == nil && p.running() {
			return nil
		}
	}
}

func (s *Server) startFailure(cause error, logged int64) error {
	text := tail(s.Log(), logged, 15)
	for _, sign := range []string{"Address already in use", "another mysqld server running on port"} {
		if strings.Contains(text, sign) {
			return fmt.Errorf("devstack: starting %s on %s: %w", s.name, s.Addr(), errPortTaken)
		}
	}
	return &Error{
		Doing: "starting " + s.name,
		Err:   fmt.Errorf("%w; the end of its log:\n%s", cause, text),
		Hint:  "if the log names no cause, remove the dev folder (.dev) and start again",
	}
}

// freePort chooses below the range that the kernel gives to outgoing
// connections, so that a server that is down for a moment finds its port free
// again, and nobody who dials it meanwhile connects to himself.
func freePort() (int, error) {
	const low = 15000
	high := ephemeralLow()
	if high <= low+1000 {
		high = 32768
	}
	for range 200 {
		port := low + rand.IntN(high-low)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("devstack: no free port on loopback")
}

func ephemeralLow() int {
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(b))
	if len(fields) != 2 {
		return 0
	}
	n, err := strconv.Atoi(fields[0])
	if err != nil {
		return 0
	}
	return n
}

func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// wait reports whether the time passed before the context ended.
func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
