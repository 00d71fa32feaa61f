package shadow

import "sync"

// signal wakes everybody who waits.
type signal struct {
	mu sync.Mutex
	ch chan struct{}
	// waited is false while nobody has asked for the present channel: raising it is then free.
	waited bool
}

func newSignal() *signal { return &signal{ch: make(chan struct{})} }

// wait gives a channel that the next raise closes.
func (s *signal) wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waited = true
	return s.ch
}

func (s *signal) raise() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.waited {
		return
	}
	close(s.ch)
	s.ch, s.waited = make(chan struct{}), false
}
