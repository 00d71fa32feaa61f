//go:build !linux

package bench

import "time"

// sleepUntil is as precise as the runtime's timers.
func sleepUntil(t time.Time) {
	time.Sleep(time.Until(t)) //nolint:forbidigo // it is what waiting is here
}
