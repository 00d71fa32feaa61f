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
	if err := isRedis(ctx, r.Addr(), pid); err != nil {
		return err
	}
	return withRedis(r.Addr(), func(c *redis.Client) error {
		// A server that is still loading answers INFO, but not GET. A node of a
		// cluster that does not serve the key says so, and is ready.
		err := c.Get(ctx, "devstack").Err()
		if err != nil && err != redis.Nil && !redis.HasErrorPrefix(err, "CLUSTERDOWN") && !redis.HasErrorPrefix(err, "MOVED") { //nolint:errorlint // go-redis returns it bare
			return fmt.Errorf("devstack: %w", err)
		}
		if r.Version != "" { // a restart changes nothing, and readers need no lock
			return nil
		}
		info, err := c.Info(ctx, "server").Result()
		if err != nil {
			return fmt.Errorf("devstack: %w", err)
		}
		r.Version = infoField(info, "redis_version")
		return nil
	})
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

// withRedis lends a plain client of one server.
func withRedis(addr string, f func(*redis.Client) error) error {
	c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, PoolSize: 1, DialTimeout: time.Second, DialerRetries: 1, ReadTimeout: 10 * time.Second})
	defer c.Close()
	return f(c)
}

// isRedis fails until a server answers there, and is the process with this pid.
func isRedis(ctx context.Context, addr string, pid int) error {
	return withRedis(addr, func(c *redis.Client) error {
		info, err := c.Info(ctx, "server").Result()
		if err != nil {
			return fmt.Errorf("devstack: %w", err)
		}
		if infoField(info, "process_id") != strconv.Itoa(pid) {
			return fmt.Errorf("devstack: another Redis listens on %s", addr)
		}
		return nil
	})
}
