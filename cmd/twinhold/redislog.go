package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/redis/go-redis/v9"
)

// redisLog takes what the Redis client says on its own (failed dials, which come back as errors too) to the debug
// log, so that it does not write to stderr past everything else.
type redisLog struct{ log *slog.Logger }

// Printf is the client's way to log.
func (l redisLog) Printf(ctx context.Context, format string, v ...any) {
	l.log.DebugContext(ctx, "redis client: "+fmt.Sprintf(format, v...))
}

func quietRedis() { redis.SetLogger(redisLog{slog.Default()}) }
