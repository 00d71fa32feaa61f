package legacyredis

import (
	"context"
	"net"
)

// ScriptText is a script as it is sent to Redis.
func ScriptText(name string) (string, error) {
	return scriptText(name, false)
}

// ClusterScriptText is a script as it is sent to a node of a cluster.
func ClusterScriptText(name string) (string, error) {
	return scriptText(name, true)
}

// DialThrough makes a client of Sentinel or Cluster dial that address, whoever holds the pod. It tells whether it is one.
func (c *Client) DialThrough(addr string) bool {
	if c.place == nil {
		return false
	}
	dial := c.place.dial
	c.place.dial = func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx, addr) }
	return true
}

// Scan gives the pod's keys page by page.
func (s *Store) Scan(ctx context.Context, f func(keys []string) (more bool, err error)) error {
	return s.scan(ctx, f)
}

// Doubt makes every connection one that is not used again.
func (c *Client) Doubt() { c.place.doubt(c.place.reign.Load()) }
