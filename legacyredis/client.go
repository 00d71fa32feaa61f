package legacyredis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Timeouts of a client by NewClient. A caller's earlier deadline always wins.
const (
	dialTimeout = time.Second
	// replyTimeout bounds one attempt, so that a lost reply leaves time to ask again. A script takes a few
	// milliseconds; an fsync of the append-only file can hold Redis up for longer.
	replyTimeout = time.Second
	poolTimeout  = time.Second
	// findTimeout bounds the question where the pod is.
	findTimeout = 500 * time.Millisecond
)

// Client reaches one pod's Redis: one server, the primary that sentinels name, or the node of a cluster that serves the
// pod's slot. Before the first command of every connection it compares, in one script, the server
// with the one that wrote the pod's fence: a restarted or promoted server, or a slot's new node, may have lost writes,
// so it is suspect until it was restored (see reservation.Fence). Only NewClient makes one.
type Client struct {
	*redis.Client
	pod   string
	at    address
	place *place // nil: one server, that stays
}

// ClientLimits are a client's, where its URL does not set them (pool_size, read_timeout, write_timeout).
type ClientLimits struct {
	Connections int           // default 10 for each processor
	Deadline    time.Duration // for one attempt. Default 1s
}

// NewClient makes a client that suits the store of a pod: it never runs a command
// again by itself, obeys the deadlines of contexts, and checks the server of every connection. Whoever made it
// closes it.
//
// The URL is redis:// or rediss://. With master_name it is one of Sentinel, with addr and without master_name one of
// Cluster (docs/redis.md). go-redis's own client of a cluster is not used: it sends a script again when its reply is
// lost.
func NewClient(url, pod string, limits ...ClientLimits) (*Client, error) {
	if err := validatePod(pod); err != nil {
		return nil, err
	}
	at, err := parseAddress(url)
	if err != nil {
		return nil, err
	}
	o := at.options
	suit(o)
	for _, l := range limits {
		if o.PoolSize == 0 {
			o.PoolSize = l.Connections
		}
		o.ReadTimeout, o.WriteTimeout = orElse(o.ReadTimeout, l.Deadline), orElse(o.WriteTimeout, l.Deadline)
	}
	o.DialTimeout = orElse(o.DialTimeout, dialTimeout)
	o.ReadTimeout = orElse(o.ReadTimeout, replyTimeout)
	o.WriteTimeout = orElse(o.WriteTimeout, replyTimeout)
	o.PoolTimeout = orElse(o.PoolTimeout, poolTimeout)
	k := newKeys(pod)
	c := &Client{pod: pod, at: at, place: at.place(k.fence())}
	if o.OnConnect, err = checkServer(k, c.place, at.cluster); err != nil {
		return nil, err
	}
	if c.place != nil {
		o.Addr, o.Dialer = at.ask[0], c.place.connect // the address is a name only
	}
	c.Client = redis.NewClient(o)
	if c.place != nil {
		c.AddHook(placeHook{c.place})
	}
	return c, nil
}

// suit sets what the store relies on.
func suit(o *redis.Options) {
	o.MaxRetries = -1
	o.ContextTimeoutEnabled = true
	o.Protocol = 2
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	o.DialerRetries = 1
}

// place is nil where the server stays.
func (a address) place(fence string) *place {
	if len(a.ask) == 0 {
		return nil
	}
	o := redis.Options{Username: a.options.Username, Password: a.options.Password}
	if a.sentinel != nil {
		o = *a.sentinel
	}
	suit(&o)
	o.TLSConfig, o.PoolSize = a.options.TLSConfig, 1
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout = a.options.DialTimeout, findTimeout, findTimeout
	p := &place{dial: dialer(a.options.TLSConfig, a.options.DialTimeout), who: asking{a.ask, o, &group{}}}
	if a.master != "" {
		p.find, p.always = findPrimary(p.who, a.master), true
	} else {
		p.find = findNode(p.who, fence)
	}
	return p
}

// Close closes every connection.
func (c *Client) Close() error {
	err := c.Client.Close()
	if c.place != nil {
		c.place.who.group.close()
	}
	return err
}

func orElse(d, def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return d
}

// checkServer is the first thing that happens on a connection, after it was authenticated and its database chosen. A
// connection on which it fails is not used: the server is loading, or a replica that takes no writes, or silent.
func checkServer(k keys, p *place, cluster bool) (func(context.Context, *redis.Conn) error, error) {
	connect, err := loadScript("connect", cluster)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, c *redis.Conn) error {
		if p != nil && !cluster {
			if err := checkPrimary(ctx, c, p); err != nil {
				return uncheckedError{err}
			}
		}
		err := connect.lua.Run(ctx, c, []string{k.fence()}, "0", "").Err()
		if err == nil {
			return nil
		}
		if p != nil {
			p.heard(p.reign.Load(), err)
			err = elsewhere(err)
		}
		return uncheckedError{err}
	}, nil
}

// checkPrimary: sentinels may not have heard yet that their primary was demoted, and a replica of a server that wrote
// the fence passes the script. A replica of a cluster answers MOVED to it.
func checkPrimary(ctx context.Context, c *redis.Conn, p *place) error {
	reign := p.reign.Load()
	role, err := c.Do(ctx, "ROLE").Slice()
	if err != nil || len(role) > 0 && role[0] == "master" {
		return err
	}
	p.doubt(reign)
	return notSentError{fmt.Errorf("the server that the sentinels name is a %v", role[0])}
}

// uncheckedError: the check of a new connection failed, so nothing was sent on it. It does not unwrap: go-redis would
// take what Redis answered to the check for an answer to somebody's pipeline.
type uncheckedError struct{ cause error }

func (e uncheckedError) Error() string {
	return "look at the server of a new connection: " + e.cause.Error()
}

// checked gives what made the check fail, where it did.
func checked(err error) error {
	var u uncheckedError
	if errors.As(err, &u) {
		return u.cause
	}
	return err
}

// unchecked makes a client of the same server without that check, for looking at a server that may be none to use.
func (c *Client) unchecked() *redis.Client {
	o := *c.Options()
	o.OnConnect, o.PoolSize, o.MinIdleConns, o.MaxRetries = nil, 1, 0, -1
	out := redis.NewClient(&o)
	if c.place != nil {
		out.AddHook(placeHook{c.place})
	}
	return out
}

// uncheckedAt is the same of another server: a replica.
func (c *Client) uncheckedAt(addr string) *redis.Client {
	o := *c.Options()
	o.OnConnect, o.PoolSize, o.MinIdleConns, o.MaxRetries = nil, 1, 0, -1
	o.Addr, o.Dialer = addr, func(ctx context.Context, _, _ string) (net.Conn, error) { return c.place.dial(ctx, addr) }
	return redis.NewClient(&o)
}

// validateClient refuses a client that would run a script twice when its reply is lost, overrun deadlines, or use
// a server without a look at whose it is.
func validateClient(c *Client, pod string) error {
	switch o := c.Options(); {
	case o.OnConnect == nil || c.pod != pod:
		return fmt.Errorf("legacyredis: Client does not check its server for pod %q: make it with legacyredis.NewClient", pod)
	case o.MaxRetries != 0: // -1 was turned into 0
		return errors.New("legacyredis: Client would run scripts again by itself (set MaxRetries to -1): make it with legacyredis.NewClient")
	case !o.ContextTimeoutEnabled:
		return errors.New("legacyredis: Client ignores deadlines (set ContextTimeoutEnabled): make it with legacyredis.NewClient")
	default:
		return nil
	}
}
