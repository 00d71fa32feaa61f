package config_test

import (
	"fmt"
	"os"

	"github.com/twinhold/twinhold/config"
)

// Every mistake is told at once, with its place.
func ExampleParse() {
	_, err := config.Parse([]byte(`version: 1
defaults: {ttl: 7m, poll: soon}
pods:
  - id: pod-1
    shops: ["1-999", "500"]
    redis: redis://127.0.0.1:6379/0
    mysql: twinhold:${TWINHOLD_EXAMPLE_PASSWORD}@tcp(127.0.0.1:3306)/pod1
`), "twinhold.yaml", os.LookupEnv)
	fmt.Println(err)
	// Output:
	// twinhold.yaml:2:17: defaults.ttl: 7m is at or below payment timeout 3m + callback_window 4m + clock_skew 5s = 7m5s: a hold would end before its payment can; use more than 7m5s
	// twinhold.yaml:2:27: defaults.poll: "soon" is not a duration: write a duration with a unit, as in 10m, 200ms or 48h
	// twinhold.yaml:5:22: pods[0].shops[1]: shops 500 overlap shops 1-999 of pod pod-1 (5:13): a shop lives in one pod
	// twinhold.yaml:7:12: pods[0].mysql: the environment variable TWINHOLD_EXAMPLE_PASSWORD is not set: set it, or write $${ for a plain ${
}
