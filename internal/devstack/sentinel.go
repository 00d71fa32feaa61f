package devstack

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// SentinelOptions say what a primary with sentinels is like.
type SentinelOptions struct {
	// Replicas follow the primary. Default 1.
	Replicas int
	// DownAfter is after how long without an answer the sentinels take the
	// primary for dead. Default 3 s.
	DownAfter time.Duration
	// Args are added to those of each redis-server; they win.
	Args []string
}

// sentinels is how many watch a primary; two have to agree that it is dead.
const sentinels = 3

// SentinelSet is a primary with replicas, and three sentinels that promote one
// of them when the primary is gone.
type SentinelSet struct {
	// Name is what the sentinels call the primary.
	Name string
	// Primary is the server that was the primary at the start.
	Primary   *Redis
	Replicas  []*Redis
	Sentinels []*Server
}

// AddSentinelSet starts a primary, its replicas and three sentinels, and
// returns when all of them know each other.
func (s *Stack) AddSentinelSet(ctx context.Context, o SentinelOptions) (*SentinelSet, error) {
	if o.Replicas == 0 {
		o.Replicas = 1
	}
	if o.DownAfter == 0 {
		o.DownAfter = 3 * time.Second
	}
	set := &SentinelSet{Name: "twinhold"}
	var err error
	if set.Primary, err = s.AddRedis(ctx, append([]string{"--repl-diskless-sync-delay", "0"}, o.Args...)...); err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(set.Primary.Addr())
	if err != nil {
		return nil, fmt.Errorf("devstack: %w", err)
	}
	for range o.Replicas {
		args := append([]string{"--repl-diskless-sync-delay", "0"}, o.Args...)
		r, err := s.AddRedis(ctx, append(args, "--replicaof", host, port)...)
		if err != nil {
			return nil, err
		}
		set.Replicas = append(set.Replicas, r)
	}
	if err := awaitReplicas(ctx, set.Replicas); err != nil {
		return nil, err
	}
	for range sentinels {
		srv, err := s.addSentinel(ctx, set, o)
		if err != nil {
			return nil, err
		}
		set.Sentinels = append(set.Sentinels, srv)
	}
	return set, set.awaitAgreement(ctx)
}

// addSentinel starts one sentinel. It keeps what it learns in its
// configuration file, so it needs one of its own.
func (s *Stack) addSentinel(ctx context.Context, set *SentinelSet, o SentinelOptions) (*Server, error) {
	prog, err := findRedis(ctx, s.dev, s.progress)
	if err != nil {
		return nil, err
	}
	srv, err := s.newServer("sentinel")
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(srv.DataDir(), 0o700); err != nil {
		return nil, fmt.Errorf("devstack: %w", err)
	}
	_, port, err := net.SplitHostPort(set.Primary.Addr())
	if err != nil {
		return nil, fmt.Errorf("devstack: %w", err)
	}
	conf := filepath.Join(srv.DataDir(), "sentinel.conf")
	text := fmt.Sprintf(`bind 127.0.0.1
protected-mode yes
daemonize no
dir %[1]s
sentinel monitor %[2]s 127.0.0.1 %[3]s 2
sentinel down-after-milliseconds %[2]s %[4]d
sentinel failover-timeout %[2]s 3000
`, strconv.Quote(srv.DataDir()), set.Name, port, o.DownAfter.Milliseconds())
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return nil, fmt.Errorf("devstack: %w", err)
	}
	srv.command = func(port int) (string, []string) {
		return prog.command(conf, "--sentinel", "--port", strconv.Itoa(port))
	}
	srv.ready = func(ctx context.Context, pid int) error { return isRedis(ctx, srv.Addr(), pid) }
	return srv, srv.Start(ctx)
}

// URL is the set's address, for one database of the primary.
func (x *SentinelSet) URL(db int) string {
	q := url.Values{"master_name": {x.Name}}
	for _, s := range x.Sentinels[1:] {
		q.Add("addr", s.Addr())
	}
	return fmt.Sprintf("redis://%s/%d?%s", x.Sentinels[0].Addr(), db, q.Encode())
}

// PrimaryAddr is whom the first sentinel that answers takes for the primary.
func (x *SentinelSet) PrimaryAddr(ctx context.Context) (string, error) {
	var last error
	for _, s := range x.Sentinels {
		var at []string
		last = withRedis(s.Addr(), func(c *redis.Client) error {
			var err error
			at, err = c.Do(ctx, "SENTINEL", "get-master-addr-by-name", x.Name).StringSlice()
			return err
		})
		if last == nil && len(at) == 2 {
			return net.JoinHostPort(at[0], at[1]), nil
		}
	}
	return "", fmt.Errorf("devstack: no sentinel answers: %w", last)
}

// FailOver kills the primary, and returns when the sentinels have promoted a
// replica that lacks whatever unseen has written: while it runs, the replicas
// stand still and their links are cut.
func (x *SentinelSet) FailOver(ctx context.Context, unseen func()) error {
	for _, r := range x.Replicas {
		if err := r.Pause(); err != nil {
			return err
		}
	}
	// What was sent into an open link would be read after the primary's death.
	if err := x.Primary.do(ctx, []any{"CLIENT", "KILL", "TYPE", "replica"}); err != nil {
		return err
	}
	unseen()
	if err := x.Primary.Kill(); err != nil {
		return err
	}
	for _, r := range x.Replicas {
		if err := r.Resume(); err != nil {
			return err
		}
	}
	return await(ctx, "a replica to be promoted", func() bool {
		at, err := x.PrimaryAddr(ctx)
		return err == nil && slices.ContainsFunc(x.Replicas, func(r *Redis) bool { return r.Addr() == at && r.isPrimary(ctx) })
	})
}

func (r *Redis) isPrimary(ctx context.Context) bool {
	err := withRedis(r.Addr(), func(c *redis.Client) error {
		info, err := c.Info(ctx, "replication").Result()
		if err == nil && infoField(info, "role") != "master" {
			err = errNotYet
		}
		return err
	})
	return err == nil
}

// awaitAgreement waits until every sentinel knows the others and the replicas:
// before that they could not agree on a failover.
func (x *SentinelSet) awaitAgreement(ctx context.Context) error {
	want := fmt.Sprintf("status=ok,address=%s,slaves=%d,sentinels=%d", x.Primary.Addr(), len(x.Replicas), len(x.Sentinels))
	return await(ctx, "the sentinels to know each other", func() bool {
		for _, s := range x.Sentinels {
			err := withRedis(s.Addr(), func(c *redis.Client) error {
				info, err := c.Info(ctx, "sentinel").Result()
				if err == nil && !strings.Contains(info, want) {
					err = errNotYet
				}
				return err
			})
			if err != nil {
				return false
			}
		}
		return true
	})
}

func awaitReplicas(ctx context.Context, replicas []*Redis) error {
	return await(ctx, "the replicas to follow", func() bool {
		for _, r := range replicas {
			err := withRedis(r.Addr(), func(c *redis.Client) error {
				info, err := c.Info(ctx, "replication").Result()
				if err == nil && infoField(info, "master_link_status") != "up" {
					err = errNotYet
				}
				return err
			})
			if err != nil {
				return false
			}
		}
		return true
	})
}
