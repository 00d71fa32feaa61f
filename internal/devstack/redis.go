package devstack

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// Redis is one private redis-server.
type Redis struct {
	*Server
	// Version is what the server says of itself: "7.0.15".
	Version string
}

// AddRedis starts a further redis-server in the stack. It appends every write
// to a file that is flushed once a second, evicts nothing and makes no
// snapshots; args ("--replicaof", "127.0.0.1", "15000") come after that and win.
func (s *Stack) AddRedis(ctx context.Context, args ...string) (*Redis, error) {
	prog, err := findRedis(ctx, s.dev, s.progress)
	if err != nil {
		return nil, err
	}
	srv, err := s.newServer("redis")
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(srv.DataDir(), 0o700); err != nil {
		return nil, fmt.Errorf("devstack: %w", err)
	}
	r := &Redis{Server: srv}
	srv.command = func(port int) (string, []string) {
		own := []string{
			"--port", strconv.Itoa(port),
			"--bind", "127.0.0.1",
			"--protected-mode", "yes",
			"--dir", srv.DataDir(),
			"--daemonize", "no",
			"--appendonly", "yes",
			"--appendfsync", "everysec",
			"--maxmemory-policy", "noeviction",
			"--save", "",
		}
		return prog.command(append(own, args...)...)
	}
	srv.ready = r.answers
	began := time.Now()
	if err := srv.Start(ctx); err != nil {
		return nil, err
	}
	s.progress(fmt.Sprintf("redis-server %s on %s in %.1f s", r.Version, r.Addr(), time.Since(began).Seconds()))
	return r, nil
}

func (r *Redis) answers(ctx context.Context, pid int) error {
	c := redis.NewClient(&redis.Options{Addr: r.Addr(), MaxRetries: -1, PoolSize: 1, DialTimeout: time.Second, DialerRetries: 1})
	defer c.Close()
	// A server that is still loading answers INFO, but not GET.
	if err := c.Get(ctx, "devstack").Err(); err != nil && err != redis.Nil { //nolint:errorlint // go-redis returns it bare
		return fmt.Errorf("devstack: %w", err)
	}
	info, err := c.Info(ctx, "server").Result()
	if err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	if infoField(info, "process_id") != strconv.Itoa(pid) {
		return fmt.Errorf("devstack: another Redis listens on %s", r.Addr())
	}
	if r.Version == "" { // a restart changes nothing, and readers need no lock
		r.Version = infoField(info, "redis_version")
	}
	return nil
}

func infoField(info, name string) string {
	m := regexp.MustCompile(`(?m)^` + name + `:(.*?)\r?$`).FindStringSubmatch(info)
	if m == nil {
		return ""
	}
	return m[1]
}

// URL is the server's redis:// address for one of its databases.
func (r *Redis) URL(db int) string { return fmt.Sprintf("redis://%s/%d", r.Addr(), db) }
