package legacyredis

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// address is where a pod's Redis is, by its URL: one server, the primary that sentinels name, or the node of a
// cluster that serves the pod's slot.
//
//	redis://user:password@host:port/db
//	redis://user:password@host:port/db?master_name=NAME&addr=host:port&username=..&password=..    user: the sentinels'
//	redis://user:password@host:port?addr=host:port
//
// rediss:// is the same by TLS, to sentinels too.
type address struct {
	options  *redis.Options // for the pod's server
	master   string         // of Sentinel; empty: none
	cluster  bool
	ask      []string       // the sentinels, or nodes of the cluster
	sentinel *redis.Options // how a sentinel is asked
}

// tuningParams are what a URL of Sentinel or Cluster may set beside its addresses. Others that go-redis knows would
// route to replicas or run a script twice.
func tuningParams() []string {
	return []string{
		"client_name", "conn_max_idle_time", "conn_max_lifetime", "dial_timeout", "max_active_conns", "max_idle_conns",
		"min_idle_conns", "pool_size", "pool_timeout", "read_timeout", "write_timeout",
	}
}

func parseAddress(text string) (address, error) {
	u, err := url.Parse(text)
	if err != nil {
		return address{}, errors.New("legacyredis: redis URL: it is none (use redis://user:password@host:port/db)")
	}
	switch q := u.Query(); {
	case q.Has("master_name"):
		return parseSentinel(text, q)
	case q.Has("addr"):
		return parseCluster(text, u, q)
	}
	o, err := redis.ParseURL(text)
	if err != nil {
		return address{}, fmt.Errorf("legacyredis: redis URL: %w (use redis://user:password@host:port/db)", err)
	}
	return address{options: o}, nil
}

const sentinelHint = "use redis://host:port/db?master_name=NAME&addr=host2:port&addr=host3:port"

func parseSentinel(text string, q url.Values) (address, error) {
	f, err := redis.ParseFailoverURL(text)
	if err == nil && f.MasterName == "" {
		err = errors.New("its master_name is empty")
	}
	if err == nil {
		err = onlyParams(q, "master_name", "addr", "db", "username", "password", "skip_verify")
	}
	if err != nil {
		return address{}, fmt.Errorf("legacyredis: Sentinel URL: %w (%s)", err, sentinelHint)
	}
	return address{
		master: f.MasterName, ask: f.SentinelAddrs,
		options: &redis.Options{
			Username: f.Username, Password: f.Password, DB: f.DB, TLSConfig: f.TLSConfig, ClientName: f.ClientName,
			DialTimeout: f.DialTimeout, ReadTimeout: f.ReadTimeout, WriteTimeout: f.WriteTimeout, PoolTimeout: f.PoolTimeout,
			PoolSize: f.PoolSize, MinIdleConns: f.MinIdleConns, MaxIdleConns: f.MaxIdleConns, MaxActiveConns: f.MaxActiveConns,
			ConnMaxIdleTime: f.ConnMaxIdleTime, ConnMaxLifetime: f.ConnMaxLifetime,
		},
		sentinel: &redis.Options{Username: f.SentinelUsername, Password: f.SentinelPassword},
	}, nil
}

const clusterHint = "use redis://user:password@host:port?addr=host2:port&addr=host3:port"

func parseCluster(text string, u *url.URL, q url.Values) (address, error) {
	c, err := redis.ParseClusterURL(text)
	if err == nil && strings.Trim(u.Path, "/") != "" && strings.Trim(u.Path, "/") != "0" {
		err = errors.New("a cluster has database 0 only")
	}
	if err == nil {
		err = onlyParams(q, "addr")
	}
	if err != nil {
		return address{}, fmt.Errorf("legacyredis: Cluster URL: %w (%s)", err, clusterHint)
	}
	return address{
		cluster: true, ask: c.Addrs,
		options: &redis.Options{
			Username: c.Username, Password: c.Password, TLSConfig: c.TLSConfig, ClientName: c.ClientName,
			DialTimeout: c.DialTimeout, ReadTimeout: c.ReadTimeout, WriteTimeout: c.WriteTimeout, PoolTimeout: c.PoolTimeout,
			PoolSize: c.PoolSize, MinIdleConns: c.MinIdleConns, MaxIdleConns: c.MaxIdleConns, MaxActiveConns: c.MaxActiveConns,
			ConnMaxIdleTime: c.ConnMaxIdleTime, ConnMaxLifetime: c.ConnMaxLifetime,
		},
	}, nil
}

func onlyParams(q url.Values, more ...string) error {
	for name := range q {
		if !slices.Contains(more, name) && !slices.Contains(tuningParams(), name) {
			return fmt.Errorf("%s is no parameter of it", name)
		}
	}
	return nil
}

// named is a TLS configuration for one host: the certificate of each server is its own.
func named(c *tls.Config, addr string) *tls.Config {
	host, _, err := net.SplitHostPort(addr)
	if c == nil || err != nil {
		return c
	}
	c = c.Clone()
	c.ServerName = host
	return c
}
