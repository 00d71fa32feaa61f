package legacyredis

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/reservation"
)

// maxClockDifference is how far Redis's clock may be from this process's before it is worth a word.
const maxClockDifference = time.Second

// Check looks at the server: eviction, persistence, role, version, clock, and whether it wrote the pod's fence. Of Sentinel
// and Cluster it looks at every server that holds the pod's data, replicas too, and at those who would replace one; each
// finding says of which server it is. An error means that the server that holds the pod could not be asked.
func (s *Store) Check(ctx context.Context) ([]reservation.Finding, error) {
	var info map[string]string
	var off, spread time.Duration
	var fence reservation.Fence
	// By a connection that nobody checks: a replica or a suspect server is a finding too.
	client := s.client.unchecked()
	defer client.Close()
	err := s.ask(ctx, "check", func(ctx context.Context) error {
		text, err := client.Info(ctx).Result()
		if err != nil {
			return err
		}
		info = parseInfo(text)
		if fence, err = s.fenceBy(ctx, client); err != nil {
			return err
		}
		before := time.Now()
		now, err := client.Time(ctx).Result()
		if err != nil {
			return err
		}
		spread = time.Since(before)
		off = now.Sub(before.Add(spread / 2))
		return nil
	})
	if err != nil {
		return nil, err
	}
	out := []reservation.Finding{
		checkEviction(info), checkAppendOnly(info), checkRole(info), checkVersion(info), checkClock(off, spread), checkFence(info, fence),
	}
	if s.client.place == nil {
		return out, nil
	}
	return s.checkNodes(ctx, client, info, out), nil
}

// checkFence says whether this server wrote the fence, and whether the pod is killed.
func checkFence(info map[string]string, f reservation.Fence) reservation.Finding {
	out := reservation.Finding{Check: "fence", Severity: reservation.Fine, Found: fmt.Sprintf("epoch %d, %s, of this server", f.Epoch, f.Stage)}
	switch {
	case f.Epoch == 0:
		out.Found = "none yet"
	case f.Suspect || f.Server != info["run_id"]:
		out.Severity, out.Found = reservation.Failure, fmt.Sprintf("epoch %d, %s, of another server or process: writes may be lost", f.Epoch, f.Stage)
		out.Fix = "a router restores it from MySQL by itself; if none runs: twinhold reseed"
	case f.Killed:
		out.Severity, out.Found = reservation.Warning, out.Found+", killed: "+f.Latch
		out.Fix = "no move towards MySQL until: twinhold rearm"
	}
	return out
}

func parseInfo(text string) map[string]string {
	m := make(map[string]string)
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			m[k] = v
		}
	}
	return m
}

func checkEviction(info map[string]string) reservation.Finding {
	f := reservation.Finding{Check: "maxmemory-policy", Severity: reservation.Fine, Found: info["maxmemory_policy"]}
	if f.Found != "noeviction" {
		f.Severity = reservation.Failure
		f.Fix = "CONFIG SET maxmemory-policy noeviction (and in redis.conf): with any other policy Redis may throw reservations away"
	}
	return f
}

func checkAppendOnly(info map[string]string) reservation.Finding {
	f := reservation.Finding{Check: "appendonly", Severity: reservation.Fine, Found: "yes"}
	if info["aof_enabled"] != "1" {
		f.Severity, f.Found = reservation.Failure, "no"
		f.Fix = "CONFIG SET appendonly yes (and in redis.conf): without it a restart loses every write since the last snapshot"
	} else if status := info["aof_last_write_status"]; status != "ok" && status != "" {
		f.Severity, f.Found = reservation.Failure, "last write: "+status
		f.Fix = "look at the disk of this Redis: its append-only file cannot be written"
	}
	return f
}

func checkRole(info map[string]string) reservation.Finding {
	f := reservation.Finding{Check: "role", Severity: reservation.Fine, Found: info["role"]}
	if info["role"] != "master" {
		f.Severity = reservation.Failure
		f.Found = fmt.Sprintf("%s of %s:%s (link %s)", info["role"], info["master_host"], info["master_port"], info["master_link_status"])
		f.Fix = "point the pod at the primary: a replica takes no writes"
		return f
	}
	f.Found += ", replicas: " + info["connected_slaves"]
	return f
}

func checkVersion(info map[string]string) reservation.Finding {
	f := reservation.Finding{Check: "version", Severity: reservation.Fine, Found: info["redis_version"]}
	major, _, _ := strings.Cut(f.Found, ".")
	if n, err := strconv.Atoi(major); err != nil || n < 7 {
		f.Severity, f.Fix = reservation.Failure, "use Redis 7.0 or later"
	}
	return f
}

func checkClock(off, spread time.Duration) reservation.Finding {
	f := reservation.Finding{Check: "clock", Severity: reservation.Fine, Found: fmt.Sprintf("%v from here (give or take %v)", off.Round(time.Microsecond), (spread / 2).Round(time.Microsecond))}
	if off.Abs() > maxClockDifference+spread/2 {
		f.Severity, f.Fix = reservation.Failure, "set the clocks by NTP on both machines: expiry is judged by Redis's clock"
	}
	return f
}

// fenceBy reads the fence by a client of the caller's.
func (s *Store) fenceBy(ctx context.Context, client redis.Scripter) (reservation.Fence, error) {
	c := call{script: s.scripts.fenceRead, op: reservation.OpReserve, readOnly: true}
	raw, err := c.script.lua.Run(ctx, client, []string{s.keys.fence()}, c.argv()...).Result()
	if err != nil {
		return reservation.Fence{}, err
	}
	r, err := s.answer(c, raw)
	if err != nil {
		return reservation.Fence{}, err
	}
	return parseFence(r)
}
