// Package faultproxy is a TCP proxy on loopback, between a test and a real
// MySQL or Redis, that breaks the connection at a chosen message: before the
// server has seen it, or after it has answered. It also delays, refuses and
// swallows.
//
// It understands as much of both protocols as it takes to know where a message
// ends and when its reply is complete, so "after the COMMIT" is exact and not a
// matter of timing. It never changes a byte of what it forwards. TLS and
// compression are not understood; such a connection is closed.
package faultproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

// Protocol is what the server behind the proxy speaks.
type Protocol int

// The protocols.
const (
	MySQL Protocol = iota + 1
	Redis
)

func (p Protocol) String() string {
	switch p {
	case MySQL:
		return "mysql"
	case Redis:
		return "redis"
	}
	return fmt.Sprintf("Protocol(%d)", int(p))
}

// When says on which side of the server's work a fault lies.
type When int

const (
	// Before means that the message does not reach the server.
	Before When = iota + 1
	// After means that the server has carried the message out and its reply is
	// complete, but the client does not see it.
	After
)

func (w When) String() string {
	switch w {
	case Before:
		return "before"
	case After:
		return "after"
	}
	return fmt.Sprintf("When(%d)", int(w))
}

// Rule chooses messages of the client: a MySQL command packet (for COM_QUERY
// that is a byte 3 and the text) or one Redis command as it is on the wire.
type Rule struct {
	// Match is what the message contains, byte for byte; empty matches all.
	Match []byte
	// Func, if set, must agree too.
	Func func(message []byte) bool
	When When
	// Times is how often the rule fires; 0: until it is removed.
	Times int
}

func (r Rule) matches(message []byte) bool {
	return bytes.Contains(message, r.Match) && (r.Func == nil || r.Func(message))
}

type action int

const (
	cut action = iota + 1
	swallow
	hold
)

// Fault is a rule at work.
type Fault struct {
	p      *Proxy
	rule   Rule
	action action
	left   int // matches that remain, if rule.Times > 0; under p.mu

	mu       sync.Mutex
	fired    int
	changed  chan struct{} // closed and replaced when fired goes up
	released chan struct{} // closed by Release
}

// Fired is how often the rule has fired. An After fault has fired once the
// server's reply is complete.
func (f *Fault) Fired() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fired
}

// Wait returns when the rule has fired at least once.
func (f *Fault) Wait(ctx context.Context) error { return f.WaitFor(ctx, 1) }

// WaitFor returns when the rule has fired at least n times.
func (f *Fault) WaitFor(ctx context.Context, n int) error {
	for {
		f.mu.Lock()
		fired, changed := f.fired, f.changed
		f.mu.Unlock()
		if fired >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("faultproxy: fired %d times, awaited %d: %w", fired, n, context.Cause(ctx))
		}
	}
}

// Remove takes the rule away, and releases what it holds.
func (f *Fault) Remove() {
	f.p.mu.Lock()
	f.p.faults = slices.DeleteFunc(f.p.faults, func(g *Fault) bool { return g == f })
	f.p.mu.Unlock()
	f.Release()
}

// Release lets go on what a Hold holds, now and from now on.
func (f *Fault) Release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-f.released:
	default:
		close(f.released)
	}
}

// fire does what the rule says and counts it. Who sees the effect, and asks then, finds it counted.
func (f *Fault) fire(effect func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	effect()
	f.fired++
	close(f.changed)
	f.changed = make(chan struct{})
}

type mode int

const (
	open mode = iota + 1
	refusing
	silent
)

// Proxy stands in front of one server. Its methods are safe for concurrent use.
type Proxy struct {
	upstream string
	protocol Protocol
	listener net.Listener
	wg       sync.WaitGroup

	mu     sync.Mutex
	mode   mode
	rtt    time.Duration
	faults []*Fault
	links  map[*link]struct{}
	closed bool
}

// Start listens on a free port of loopback and forwards to the server at
// upstream (host:port).
func Start(upstream string, protocol Protocol) (*Proxy, error) {
	if protocol != MySQL && protocol != Redis {
		return nil, fmt.Errorf("faultproxy: invalid %v", protocol)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("faultproxy: %w", err)
	}
	p := &Proxy{upstream: upstream, protocol: protocol, listener: l, mode: open, links: map[*link]struct{}{}}
	p.wg.Go(p.accept)
	return p, nil
}

// Addr is where clients connect.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Close cuts all connections and waits until nothing of the proxy runs.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	err := p.listener.Close()
	p.CutAll()
	p.wg.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Cut closes the connection on which a matching message is sent: Before it is
// forwarded, or After its reply has come.
func (p *Proxy) Cut(r Rule) *Fault { return p.add(r, cut) }

// Swallow leaves the connection open, and nothing more ever comes back on it:
// the matching message (Before) or its reply (After) is lost, and so is all that
// follows. The client runs into its deadline.
func (p *Proxy) Swallow(r Rule) *Fault { return p.add(r, swallow) }

// Hold keeps back the matching message (Before) or its reply (After) until
// Release; the client waits. It is for writing down an interleaving.
func (p *Proxy) Hold(r Rule) *Fault { return p.add(r, hold) }

func (p *Proxy) add(r Rule, a action) *Fault {
	if r.When != Before && r.When != After {
		panic(fmt.Sprintf("faultproxy: a rule needs a When, not %v", r.When))
	}
	f := &Fault{p: p, rule: r, action: a, left: r.Times, changed: make(chan struct{}), released: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, f)
	return f
}

// match finds the first rule for a message and takes one of its times.
func (p *Proxy) match(message []byte) *Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.faults {
		if (f.rule.Times > 0 && f.left == 0) || !f.rule.matches(message) {
			continue
		}
		f.left--
		return f
	}
	return nil
}

// SetRTT delays everything from now on, half of it on each way. Messages in
// flight do not wait for each other.
func (p *Proxy) SetRTT(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rtt = d
}

func (p *Proxy) oneWay() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rtt / 2
}

// Refuse cuts all connections and resets every new one, until Allow: the server
// as a client sees it when its process is down.
func (p *Proxy) Refuse() {
	p.setMode(refusing)
	p.CutAll()
}

// Blackhole leaves all connections open and lets nothing through, and takes new
// ones without ever answering, until Allow: a network partition.
func (p *Proxy) Blackhole() {
	p.setMode(silent)
	for _, l := range p.all() {
		l.quiet.Store(blackholed)
	}
}

// Allow ends Refuse and Blackhole. Connections that were mute are cut.
func (p *Proxy) Allow() {
	p.setMode(open)
	for _, l := range p.all() {
		if l.quiet.Load() == blackholed {
			l.reset()
		}
	}
}

// CutAll cuts the connections of now.
func (p *Proxy) CutAll() {
	for _, l := range p.all() {
		l.reset()
	}
}

// Connections is how many clients are connected.
func (p *Proxy) Connections() int { return len(p.all()) }

func (p *Proxy) setMode(m mode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = m
}

func (p *Proxy) all() []*link {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]*link, 0, len(p.links))
	for l := range p.links {
		all = append(all, l)
	}
	return all
}

func (p *Proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.admit(c.(*net.TCPConn))
	}
}

// admit starts a link under the lock, so that a change of mode finds it either
// not begun or listed.
func (p *Proxy) admit(c *net.TCPConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.mode == refusing {
		_ = c.SetLinger(0)
		_ = c.Close()
		return
	}
	l := newLink(p, c)
	if p.mode == silent {
		l.quiet.Store(blackholed)
	}
	p.links[l] = struct{}{}
	p.wg.Go(func() {
		l.run()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.links, l)
	})
}
