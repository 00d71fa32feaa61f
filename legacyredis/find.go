package legacyredis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"

	"github.com/redis/go-redis/v9"
)

// asking is how a sentinel or a node is asked where the pod is: by a client of its own, which nobody checks.
type asking struct {
	addrs   []string
	options redis.Options
	group   *group
}

// group waits for the questions that are under way: who is late is not waited for by who asks.
type group struct {
	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
}

func (g *group) start(f func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.wg.Go(f)
	return true
}

func (g *group) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.wg.Wait()
}

// answer is what one of them said.
type answer struct {
	addr  string
	epoch int64 // a higher one is newer
	err   error
}

// all asks everybody at once, and takes the newest of what a majority said; of what any said where the others do not
// answer.
func (a asking) all(ctx context.Context, ask func(ctx context.Context, c *redis.Client) answer) (string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer, len(a.addrs)) // as deep as there are answers: who is late leaves it there
	for _, addr := range a.addrs {
		started := a.group.start(func() {
			c := a.client(addr)
			defer c.Close()
			got := ask(ctx, c)
			if got.err != nil {
				got.err = fmt.Errorf("%s: %w", addr, got.err)
			}
			answers <- got
		})
		if !started {
			return "", redis.ErrClosed
		}
	}
	var best answer
	var errs []error
	good := 0
	for range a.addrs {
		got := <-answers
		if got.err != nil {
			errs = append(errs, got.err)
			continue
		}
		if good++; good == 1 || got.epoch > best.epoch {
			best = got
		}
		if good > len(a.addrs)/2 {
			break
		}
	}
	if good == 0 {
		return "", errors.Join(errs...)
	}
	return best.addr, nil
}

func (a asking) client(addr string) *redis.Client {
	o := a.options
	o.Addr, o.TLSConfig = addr, named(o.TLSConfig, addr)
	return redis.NewClient(&o)
}

// findPrimary asks the sentinels for the primary of that name.
func findPrimary(a asking, master string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		addr, err := a.all(ctx, func(ctx context.Context, c *redis.Client) answer {
			m, err := c.Do(ctx, "SENTINEL", "MASTER", master).StringSlice()
			if err != nil {
				return answer{err: err}
			}
			f := fields(m)
			epoch, err := strconv.ParseInt(f["config-epoch"], 10, 64)
			return answer{addr: net.JoinHostPort(f["ip"], f["port"]), epoch: epoch, err: err}
		})
		if err != nil {
			return "", fmt.Errorf("no sentinel names the primary %q: %w", master, err)
		}
		return addr, nil
	}
}

// findNode asks nodes of the cluster for the one that serves a key: one that does not says who does.
func findNode(a asking, key string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		addr, err := a.all(ctx, func(ctx context.Context, c *redis.Client) answer {
			err := c.Exists(ctx, key).Err()
			if to, ok := redirect(err); ok && to != "" {
				return answer{addr: to}
			}
			if err != nil && !redis.HasErrorPrefix(err, "ASK") { // it serves the slot, while that is being moved
				return answer{err: err}
			}
			return answer{addr: c.Options().Addr, epoch: 1}
		})
		if err != nil {
			return "", fmt.Errorf("no node of the cluster says who serves the pod: %w", err)
		}
		return addr, nil
	}
}

// fields reads names, each followed by its value.
func fields(flat []string) map[string]string {
	m := make(map[string]string, len(flat)/2)
	for i := 0; i+1 < len(flat); i += 2 {
		m[flat[i]] = flat[i+1]
	}
	return m
}
