package config

import (
	"net/url"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Forms of a pod's Redis URL. Sentinel and Cluster are told by their parameters, as the driver tells them.
const (
	sentinelURL = `"redis://host:26379/0?master_name=NAME&addr=host2:26379&addr=host3:26379"`
	clusterURL  = `"redis://user:password@host:7000?addr=host2:7000&addr=host3:7000"`
)

// redisTuning are the parameters that a URL of Sentinel or Cluster may have beside its addresses. The driver knows more:
// those would send a pod's commands to replicas, or run a script twice. legacyredis takes the same.
func redisTuning() []string {
	return []string{
		"client_name", "conn_max_idle_time", "conn_max_lifetime", "dial_timeout", "max_active_conns", "max_idle_conns",
		"min_idle_conns", "pool_size", "pool_timeout", "read_timeout", "write_timeout",
	}
}

// validRedis asks the driver. A master_name makes the URL one of Sentinel, an addr without it one of Cluster.
func validRedis(s string) bool {
	u, err := url.Parse(s)
	if err != nil || strings.ContainsAny(s, "\r\n\x00") || redisMistake(s) != "" {
		return false
	}
	q := u.Query()
	switch {
	case q.Has("master_name"):
		_, err = redis.ParseFailoverURL(s)
	case q.Has("addr"):
		_, err = redis.ParseClusterURL(s)
	default:
		_, err = redis.ParseURL(s)
	}
	return err == nil
}

// redisMistake names what people get wrong about URLs of several servers; empty: nothing of that. It never tells a part
// of the URL.
func redisMistake(s string) string {
	scheme, rest, _ := strings.Cut(s, "://")
	hosts, _, _ := strings.Cut(rest[strings.LastIndexByte(rest, '@')+1:], "/")
	u, err := url.Parse(s)
	switch {
	case strings.HasPrefix(scheme, "redis+") || strings.HasPrefix(scheme, "redis-"):
		return "has a scheme of its own for Sentinel or Cluster: write " + sentinelURL + " or " + clusterURL
	case strings.HasPrefix(scheme, "redis") && strings.Contains(hosts, ","):
		return "names several hosts in one place: write " + sentinelURL + " or " + clusterURL
	case err != nil || !strings.HasPrefix(scheme, "redis"):
		return ""
	}
	q := u.Query()
	for _, addr := range q["addr"] {
		if !validHostPort(addr) {
			return "has an addr that is not host:port: write each one as in addr=host2:7000"
		}
	}
	switch {
	case q.Has("master_name"):
		return sentinelMistake(q)
	case q.Has("addr"):
		return clusterMistake(u, q)
	}
	return ""
}

func sentinelMistake(q url.Values) string {
	switch {
	case q.Get("master_name") == "":
		return "does not say which primary the sentinels watch: write master_name=NAME, as their configuration has it"
	case strange(q, "master_name", "addr", "db", "username", "password", "skip_verify"):
		return "has a parameter that a Sentinel URL of a pod does not take: it takes master_name, addr, db, username, password, skip_verify, " +
			strings.Join(redisTuning(), ", ")
	}
	return ""
}

func clusterMistake(u *url.URL, q url.Values) string {
	switch db := strings.Trim(u.Path, "/"); {
	case db != "" && db != "0":
		return "names a database: a cluster has none but 0, so leave it out"
	case strange(q, "addr"):
		return "has a parameter that a Cluster URL of a pod does not take: it takes addr, " + strings.Join(redisTuning(), ", ")
	}
	return ""
}

func strange(q url.Values, known ...string) bool {
	for name := range q {
		if !slices.Contains(known, name) && !slices.Contains(redisTuning(), name) {
			return true
		}
	}
	return false
}
