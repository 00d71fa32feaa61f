package bench

import (
	"errors"
	"syscall"
	"time"
)

// sleepUntil waits with the precision of the kernel: a timer of the runtime may be a millisecond late where nothing
// else runs, which is more than a round trip. It takes the thread while it waits.
func sleepUntil(t time.Time) {
	for {
		left := time.Until(t)
		if left <= 0 {
			return
		}
		ts := syscall.NsecToTimespec(int64(left))
		if err := syscall.Nanosleep(&ts, nil); err != nil && !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}
