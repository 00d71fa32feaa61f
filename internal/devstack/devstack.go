// Package devstack runs private mysqld and redis-server processes for the demo,
// the devstack command and the tests.
//
// It promises that nothing on the system changes: a suitable server on PATH is
// used as it is, anything else is downloaded with apt into the dev folder and
// unpacked there. Servers listen on loopback only, have data folders of their
// own, never outlive the process that started them, and never disturb another
// stack. MySQL is MySQL: MariaDB is never taken in its place.
//
// It never touches a server that it did not start, and it knows nothing of
// reservations.
package devstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// Options say which servers a stack has and where they live.
type Options struct {
	// Dir is the dev folder, where fetched servers and run folders are kept.
	// Empty: TWINHOLD_DEV_DIR, else .dev beside the module's go.mod, else .dev
	// in the working directory.
	Dir string
	// MySQL and Redis say which servers to start. Further ones come with
	// AddMySQL and AddRedis.
	MySQL, Redis bool
	// MySQLArgs and RedisArgs are added to the server's own arguments, after
	// the defaults, so that they win: "--max-connections=50", "--appendfsync",
	// "always".
	MySQLArgs, RedisArgs []string
	// Progress is told what takes time, one line a call. May be nil.
	Progress func(string)
}

// Stack is a set of running servers with one run folder. Its methods are safe
// for concurrent use.
type Stack struct {
	// MySQL and Redis are the servers asked for in Options, else nil.
	MySQL *MySQL
	Redis *Redis

	dev      string
	run      *runFolder
	launch   *launcher
	progress func(string)

	mu      sync.Mutex
	servers []*Server
	count   int
	closed  bool
}

// Start fetches what is missing and starts the servers. The context bounds the
// start only; the servers run until Close, or until this process ends by any
// means.
func Start(ctx context.Context, o Options) (*Stack, error) {
	dev, err := devDir(o.Dir)
	if err != nil {
		return nil, err
	}
	run, err := newRunFolder(ctx, dev)
	if err != nil {
		return nil, err
	}
	s := &Stack{dev: dev, run: run, launch: newLauncher(), progress: progressOf(o.Progress)}
	if err := s.startAsked(ctx, o); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// startAsked starts the servers named by the options, both at once, since each
// mostly waits for itself.
func (s *Stack) startAsked(ctx context.Context, o Options) error {
	var wg sync.WaitGroup
	var mysqlErr, redisErr error
	if o.MySQL {
		wg.Go(func() { s.MySQL, mysqlErr = s.AddMySQL(ctx, o.MySQLArgs...) })
	}
	if o.Redis {
		wg.Go(func() { s.Redis, redisErr = s.AddRedis(ctx, o.RedisArgs...) })
	}
	wg.Wait()
	return errors.Join(mysqlErr, redisErr)
}

// Dir is the stack's run folder; Close removes it.
func (s *Stack) Dir() string { return s.run.path }

// Close ends all servers, paused ones too, and removes the run folder. The
// data is gone with it, so nothing is shut down gently.
func (s *Stack) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	servers := s.servers
	s.mu.Unlock()
	errs := make([]error, 0, len(servers)+1)
	for _, srv := range servers {
		errs = append(errs, srv.retire())
	}
	s.launch.close()
	errs = append(errs, s.run.remove())
	return errors.Join(errs...)
}

// newServer gives a server of the stack its own folder, without starting it.
func (s *Stack) newServer(kind string) (*Server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	s.count++
	dir := filepath.Join(s.run.path, fmt.Sprintf("%s-%d", kind, s.count))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("devstack: %w", err)
	}
	srv := &Server{name: kind, dir: dir, launch: s.launch}
	s.servers = append(s.servers, srv)
	return srv, nil
}

// Fetch downloads whatever Start would have to download, and prepares the data
// folder that every MySQL starts from, so that later starts take seconds.
func Fetch(ctx context.Context, o Options) error {
	dev, err := devDir(o.Dir)
	if err != nil {
		return err
	}
	progress := progressOf(o.Progress)
	if o.MySQL {
		prog, err := findMySQL(ctx, dev, progress)
		if err != nil {
			return err
		}
		if _, err := mysqlTemplate(ctx, dev, prog, progress); err != nil {
			return err
		}
		progress("mysqld: " + prog.version)
	}
	if o.Redis {
		prog, err := findRedis(ctx, dev, progress)
		if err != nil {
			return err
		}
		progress("redis-server: " + prog.version)
	}
	return nil
}

func progressOf(f func(string)) func(string) {
	if f == nil {
		return func(string) {}
	}
	var mu sync.Mutex // two servers start at once
	return func(line string) {
		mu.Lock()
		defer mu.Unlock()
		f(line)
	}
}
