package legacyredis

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// heartbeat is what {pod}:routers holds of a router, behind Redis's clock.
type heartbeat struct {
	Epoch   uint64 `json:"epoch"`
	Stage   string `json:"stage"`
	Cut     bool   `json:"cut,omitempty"`
	Queue   int    `json:"queue"`
	Breaker string `json:"breaker"`
	Skipped int64  `json:"skipped,omitempty"`
}

// Beat writes the router's heartbeat and gives the fence: how a router loads the fence, and acknowledges it. A suspect
// Redis, and one without a fence, take none; their fence is given all the same.
func (s *Store) Beat(ctx context.Context, hb reservation.Heartbeat) (reservation.Fence, error) {
	if hb.Router == "" {
		return reservation.Fence{}, &reservation.InvalidError{Field: "router", Reason: "is empty: a router needs a name"}
	}
	body, err := json.Marshal(heartbeat{
		Epoch: hb.Epoch, Stage: stageName(hb.Stage), Cut: hb.Cut, Queue: hb.Queue, Breaker: hb.Breaker, Skipped: hb.Skipped,
	})
	if err != nil {
		return reservation.Fence{}, fmt.Errorf("redis: heartbeat: %w", err)
	}
	return s.fence(ctx, call{script: s.scripts.beat, stamp: hb.Stamp, args: []any{hb.Router, string(body)}, readOnly: true})
}

// stageName is empty for a router that knows no stage yet.
func stageName(st reservation.Stage) string {
	if !st.Valid() {
		return ""
	}
	return st.String()
}

// Leave removes a router's heartbeat: it stops on purpose.
func (s *Store) Leave(ctx context.Context, router string) error {
	_, err := s.run(ctx, call{script: s.scripts.leave, op: reservation.OpReserve, args: []any{router}, readOnly: true})
	return err
}

// Routers gives every heartbeat of the last keep, by name, and removes older ones.
func (s *Store) Routers(ctx context.Context, keep time.Duration) ([]reservation.Heartbeat, error) {
	r, err := s.run(ctx, call{script: s.scripts.routers, op: reservation.OpReserve, args: []any{micros(keep)}, readOnly: true})
	if err != nil {
		return nil, err
	}
	now, err := r.number(0)
	if err != nil {
		return nil, err
	}
	var out []reservation.Heartbeat
	for i := 1; i+1 < len(r.vals); i += 2 {
		hb, err := s.decodeHeartbeat(r.text(i), r.text(i+1), now)
		if err != nil {
			return nil, err
		}
		out = append(out, hb)
	}
	slices.SortFunc(out, func(a, b reservation.Heartbeat) int { return strings.Compare(a.Router, b.Router) })
	return out, nil
}

func (s *Store) decodeHeartbeat(router, text string, now int64) (reservation.Heartbeat, error) {
	clock, body, _ := strings.Cut(text, " ")
	var h heartbeat
	at, err := strconv.ParseInt(clock, 10, 64)
	if err == nil {
		err = json.Unmarshal([]byte(body), &h)
	}
	if err != nil {
		return reservation.Heartbeat{}, &reservation.CorruptError{
			Store: reservation.Redis, What: fmt.Sprintf("%s holds %q of router %q: %v", s.keys.routers(), text, router, err),
		}
	}
	stage, _ := reservation.ParseStage(h.Stage) // none: it knows no stage yet
	return reservation.Heartbeat{
		Router: router, Stamp: reservation.Stamp{Epoch: h.Epoch, Stage: stage},
		At: time.UnixMicro(at).UTC(), Ago: time.Duration(now-at) * time.Microsecond,
		Cut: h.Cut, Queue: h.Queue, Breaker: h.Breaker, Skipped: h.Skipped,
	}, nil
}

// WaitReplica waits until one replica has all writes so far, or the time is over. It tells how many have them, and
// how many are connected.
func (s *Store) WaitReplica(ctx context.Context, wait time.Duration) (reached, connected int, err error) {
	err = s.ask(ctx, "wait_replica", func(ctx context.Context) error {
		// Redis waits for what was written on the connection that asks. So this one writes.
		conn := s.client.Conn()
		defer func() { _ = conn.Close() }()
		text, err := conn.Info(ctx, "replication").Result()
		if err != nil {
			return err
		}
		if connected, err = strconv.Atoi(parseInfo(text)["connected_slaves"]); err != nil {
			return fmt.Errorf("connected_slaves: %w", err)
		}
		if connected == 0 {
			return nil
		}
		if err := s.scripts.touch.lua.Run(ctx, conn, []string{s.keys.fence()}, "0", "").Err(); err != nil {
			return err
		}
		n, err := conn.Wait(ctx, 1, wait).Result()
		reached = int(n)
		return err
	})
	return reached, connected, err
}
