package legacyredis

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/reservation"
)

// checkNodes adds to what was found of the server that holds the pod: where it is, its replicas, and who would replace it.
func (s *Store) checkNodes(ctx context.Context, c *redis.Client, info map[string]string, of []reservation.Finding) []reservation.Finding {
	addr := s.client.place.at()
	out := make([]reservation.Finding, 0, len(of))
	for _, f := range of {
		out = append(out, onNode(f, addr))
	}
	replicas := replicasOf(info)
	for _, r := range replicas {
		out = append(out, s.checkReplica(ctx, r)...)
	}
	out = append(out, onNode(checkReplicas(replicas, info), addr))
	if s.client.at.cluster {
		return append(out, s.checkCluster(ctx, c))
	}
	return append(out, s.checkSentinels(ctx))
}

func onNode(f reservation.Finding, addr string) reservation.Finding {
	f.Found = addr + ": " + f.Found
	return f
}

// at is where the pod was last.
func (p *place) at() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.addr
}

// replicasOf reads 'slave0:ip=..,port=..,state=online,offset=..,lag=..' of INFO.
func replicasOf(info map[string]string) []string {
	var out []string
	for i := 0; ; i++ {
		text, ok := info["slave"+strconv.Itoa(i)]
		if !ok {
			return out
		}
		f := map[string]string{}
		for part := range strings.SplitSeq(text, ",") {
			k, v, _ := strings.Cut(part, "=")
			f[k] = v
		}
		out = append(out, net.JoinHostPort(f["ip"], f["port"]))
	}
}

// checkReplica looks at a server that may be promoted: what is set wrong there is wrong from that moment on. That it
// does not follow, or is not within reach, takes nothing from what the primary promises: a warning.
func (s *Store) checkReplica(ctx context.Context, addr string) []reservation.Finding {
	c := s.client.uncheckedAt(addr)
	defer c.Close()
	text, err := c.Info(ctx).Result()
	if err != nil {
		return []reservation.Finding{{
			Check: "role", Severity: reservation.Warning, Found: fmt.Sprintf("%s: a replica that does not answer: %v", addr, err),
			Fix: "see whether it runs, and whether this machine may reach it: if it is promoted, the pod is there",
		}}
	}
	info := parseInfo(text)
	role := reservation.Finding{Check: "role", Severity: reservation.Fine, Found: "replica, link " + info["master_link_status"]}
	if info["role"] != "slave" || info["master_link_status"] != "up" {
		role.Severity = reservation.Warning
		role.Found = fmt.Sprintf("%s, link %s", info["role"], info["master_link_status"])
		role.Fix = "see the replica's log: while it does not follow, a failover loses what it lacks"
	}
	found := []reservation.Finding{checkEviction(info), checkAppendOnly(info), role, checkVersion(info)}
	for i, f := range found {
		found[i] = onNode(f, addr)
	}
	return found
}

// checkReplicas says whether anybody could take over, and whether the primary stops where nobody would hear it.
func checkReplicas(replicas []string, info map[string]string) reservation.Finding {
	f := reservation.Finding{Check: "min-replicas-to-write", Severity: reservation.Fine, Found: info["min_slaves_good_slaves"] + " replicas follow closely"}
	switch {
	case info["role"] != "master":
		f.Found = "not asked of a replica"
	case len(replicas) == 0:
		f.Check, f.Severity, f.Found = "replicas", reservation.Warning, "none: nobody can take over"
		f.Fix = "give it a replica, or accept that the pod waits for this server when it is down"
	case info["min_slaves_good_slaves"] == "":
		f.Severity, f.Found = reservation.Warning, "0: cut off from the others it goes on granting, and all of that is lost when it is demoted"
		f.Fix = "CONFIG SET min-replicas-to-write 1 and min-replicas-max-lag 10 (and in redis.conf, on every node)"
	}
	return f
}

// checkSentinels asks each sentinel of the URL whether it could bring a failover about.
func (s *Store) checkSentinels(ctx context.Context) reservation.Finding {
	f := reservation.Finding{Check: "sentinels", Severity: reservation.Fine}
	var silent, unable []string
	for _, addr := range s.client.at.ask {
		c := s.client.place.who.client(addr)
		err := c.Do(ctx, "SENTINEL", "CKQUORUM", s.client.at.master).Err()
		_ = c.Close()
		switch {
		case err == nil:
		case redis.HasErrorPrefix(err, "NOQUORUM"):
			unable = append(unable, addr+": "+err.Error())
		default:
			silent = append(silent, addr+": "+err.Error())
		}
	}
	all := len(s.client.at.ask)
	f.Found = fmt.Sprintf("%d of %d of the URL answer", all-len(silent), all)
	switch {
	case len(unable) > 0 || 2*(all-len(silent)) <= all:
		f.Severity, f.Found = reservation.Failure, f.Found+"; "+strings.Join(append(unable, silent...), "; ")
		f.Fix = "bring the other sentinels back: without a majority nobody is promoted"
	case len(silent) > 0:
		f.Severity, f.Found = reservation.Warning, f.Found+"; "+strings.Join(silent, "; ")
		f.Fix = "bring it back, or take it out of the pod's URL"
	case all < 3:
		f.Severity, f.Fix = reservation.Warning, "name all sentinels in the pod's URL, three at least: a router finds the primary by these alone"
	}
	return f
}

// checkCluster looks at the cluster as the node that holds the pod sees it.
func (s *Store) checkCluster(ctx context.Context, c *redis.Client) reservation.Finding {
	f := reservation.Finding{Check: "cluster", Severity: reservation.Fine}
	slot, err := c.ClusterKeySlot(ctx, s.keys.fence()).Result()
	var text, nodes string
	if err == nil {
		text, err = c.ClusterInfo(ctx).Result()
	}
	if err == nil {
		nodes, err = c.ClusterNodes(ctx).Result()
	}
	info := parseInfo(text)
	f.Found = fmt.Sprintf("%s, %s primaries, the pod is slot %d on %s", info["cluster_state"], info["cluster_size"], slot, s.client.place.at())
	switch {
	case err != nil:
		f.Severity, f.Found, f.Fix = reservation.Failure, err.Error(), "let the pod's user run CLUSTER KEYSLOT, INFO and NODES"
	case info["cluster_state"] != "ok":
		f.Severity, f.Fix = reservation.Failure, "redis-cli --cluster check: a part of the slots is served by nobody"
	case strings.Contains(nodes, fmt.Sprintf("[%d-", slot)):
		f.Severity, f.Found = reservation.Warning, f.Found+", which is being moved"
		f.Fix = "wait for the end of the move (or redis-cli --cluster fix): until then the pod answers unavailable"
	}
	return f
}
