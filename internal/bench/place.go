package bench

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Servers are where a bench runs.
type Servers struct {
	// MySQL is a DSN; a schema that it names is not touched. Redis is a redis:// URL.
	MySQL, Redis string
	// MySQLPID and RedisPID are the servers' processes, for their CPU; 0 where they are not on this machine.
	MySQLPID, RedisPID int
	// Versions names the servers, for people.
	Versions string
}

// place is a scheme's own schema, and the prefix of its keys in Redis.
type place struct {
	DSN    string
	Redis  string
	Prefix string // of keys: one hash tag
	// Buckets is how many of them have stock.
	Buckets int
}

const cleanUpTimeout = 30 * time.Second

// NoSchemaError: a scratch schema could not be created; Err says why. Nothing was changed.
type NoSchemaError struct {
	Schema string
	Err    error
}

func (e *NoSchemaError) Error() string {
	return fmt.Sprintf("a schema of its own (%s) cannot be created, and the pod's tables are not touched: %v", e.Schema, e.Err)
}

// Unwrap gives what the server said.
func (e *NoSchemaError) Unwrap() error { return e.Err }

// scratch makes places and removes them.
type scratch struct {
	servers Servers
	name    string
	made    []place
}

func newScratch(s Servers) *scratch {
	return &scratch{servers: s, name: "twinhold_bench_" + strings.ToLower(rand.Text()[:8])}
}

// add makes a place. Whatever was made is removed by clean, also if this fails.
func (s *scratch) add(ctx context.Context, buckets int) (place, error) {
	cfg, err := mysql.ParseDSN(s.servers.MySQL)
	if err != nil {
		return place{}, fmt.Errorf("MySQL DSN: %w", err)
	}
	if _, err := redisOptions(s.servers.Redis); err != nil {
		return place{}, err
	}
	name := fmt.Sprintf("%s_%d", s.name, len(s.made)+1)
	cfg.DBName = ""
	err = withDB(cfg, func(db *sql.DB) error {
		_, err := db.ExecContext(ctx, qSchemaCreate+name)
		return err
	})
	if err != nil {
		return place{}, &NoSchemaError{Schema: name, Err: err}
	}
	cfg.DBName = name
	p := place{DSN: cfg.FormatDSN(), Redis: s.servers.Redis, Prefix: "{" + strings.ReplaceAll(name, "_", "-") + "}", Buckets: buckets}
	s.made = append(s.made, p)
	return p, nil
}

// clean removes everything that was made, also after an interrupt.
func (s *scratch) clean(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	var errs []error
	for _, p := range s.made {
		cfg, err := mysql.ParseDSN(p.DSN)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		name := cfg.DBName
		cfg.DBName = ""
		err = withDB(cfg, func(db *sql.DB) error {
			_, err := db.ExecContext(ctx, qSchemaDrop+name)
			return err
		})
		if err = errors.Join(err, dropKeys(ctx, p)); err != nil {
			errs = append(errs, fmt.Errorf("remove scratch schema %s: %w", name, err))
		}
	}
	s.made = nil
	return errors.Join(errs...)
}

func withDB(cfg *mysql.Config, do func(*sql.DB) error) error {
	cfg.Timeout = 5 * time.Second
	cfg.Logger = &mysql.NopLogger{}
	c, err := mysql.NewConnector(cfg)
	if err != nil {
		return fmt.Errorf("MySQL DSN: %w", err)
	}
	db := sql.OpenDB(c)
	defer db.Close()
	return do(db)
}

// redisOptions reads a URL for a client that never sends a command again by itself.
func redisOptions(raw string) (*redis.Options, error) {
	o, err := redis.ParseURL(raw)
	if err != nil {
		return nil, fmt.Errorf("redis URL: %w: bench needs one server, redis://user:password@host:port/db", err)
	}
	o.MaxRetries = -1
	o.Protocol = 2
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return o, nil
}

// withAddr gives a URL that redisOptions has read another address.
func withAddr(raw, addr string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return raw
	}
	u.Host = addr
	return u.String()
}

// dropKeys removes the keys of a place.
func dropKeys(ctx context.Context, p place) error {
	o, err := redisOptions(p.Redis)
	if err != nil {
		return err
	}
	c := redis.NewClient(o)
	defer c.Close()
	var cursor uint64
	for {
		keys, next, err := c.Scan(ctx, cursor, p.Prefix+"*", 1000).Result()
		if err != nil {
			return err
		}
		if len(keys) > 0 {
			if err := c.Unlink(ctx, keys...).Err(); err != nil {
				return err
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}
