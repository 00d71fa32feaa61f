package legacyredis

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// outcome is what became of one call of a batch.
type outcome struct {
	reply reply
	err   error
}

// runAll carries out several calls with one round trip. They are not one transaction: each stands alone, and what
// got no answer in the shared trip is run by itself.
func (s *Store) runAll(ctx context.Context, calls []call) []outcome {
	out := make([]outcome, len(calls))
	if len(calls) == 1 {
		out[0].reply, out[0].err = s.run(ctx, calls[0])
		return out
	}
	start := time.Now()
	cmds := make([]*redis.Cmd, len(calls))
	pipe := s.client.Pipeline()
	for i, c := range calls {
		cmds[i] = pipe.EvalSha(ctx, c.script.lua.Hash(), []string{s.keys.fence()}, c.argv()...)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	took := time.Since(start).Seconds() / float64(max(len(calls), 1))
	for i, c := range calls {
		raw, err := cmds[i].Result()
		if err != nil {
			s.metrics.retries.WithLabelValues(c.script.name, className(err)).Inc()
			out[i].reply, out[i].err = s.run(ctx, c)
			continue
		}
		s.metrics.scripts.WithLabelValues(c.script.name).Observe(took)
		out[i].reply, out[i].err = s.answer(c, raw)
	}
	return out
}
