package podset_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/legacyredis"
)

func redisClient(t *testing.T, url string) redis.UniversalClient {
	t.Helper()
	c, err := legacyredis.NewClient(url, "looking-on")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}
