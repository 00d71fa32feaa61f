package legacyredis

import (
	"errors"
	"fmt"
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
)

// NewClient makes a client for a redis:// or rediss:// URL that suits the store: it never runs a command again by
// itself, and it obeys the deadlines of contexts. Whoever made it closes it.
func NewClient(url string) (redis.UniversalClient, error) {
	o, err := redis.ParseURL(url)
	if err != nil {
		return nil, fmt.Errorf("legacyredis: redis URL: %w (use redis://user:password@host:port/db)", err)
	}
	o.MaxRetries = -1
	o.ContextTimeoutEnabled = true
	o.Protocol = 2
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	o.DialerRetries = 1
	o.DialTimeout = orElse(o.DialTimeout, dialTimeout)
	o.ReadTimeout = orElse(o.ReadTimeout, replyTimeout)
	o.WriteTimeout = orElse(o.WriteTimeout, replyTimeout)
	o.PoolTimeout = orElse(o.PoolTimeout, poolTimeout)
	return redis.NewClient(o), nil
}

func orElse(d, def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return d
}

// validateClient refuses a client that would run a script twice when its reply is lost, or overrun deadlines.
func validateClient(c redis.UniversalClient) error {
	client, ok := c.(*redis.Client)
	if !ok {
		return errors.New("legacyredis: Client: only a client of one Redis is supported: make it with legacyredis.NewClient")
	}
	switch o := client.Options(); {
	case o.MaxRetries != 0: // -1 was turned into 0
		return errors.New("legacyredis: Client would run scripts again by itself (set MaxRetries to -1): make it with legacyredis.NewClient")
	case !o.ContextTimeoutEnabled:
		return errors.New("legacyredis: Client ignores deadlines (set ContextTimeoutEnabled): make it with legacyredis.NewClient")
	default:
		return nil
	}
}
