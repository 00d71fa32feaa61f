package legacyredis

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// place is which server holds a pod's data now, where that can change: sentinels promote another one, or the pod's
// slot moves to another node of a cluster. All of a pod's keys are in one slot, so it is always one server; and every
// connection of the pod's client goes to it. When it changes, the connections to the old one are not used again, so
// that the check of new connections sees every server that takes over.
type place struct {
	who  asking // the sentinels or nodes that find asks
	find func(ctx context.Context) (addr string, err error)
	// always: find is asked for every connection.
	always bool
	dial   func(ctx context.Context, addr string) (net.Conn, error)

	mu   sync.Mutex
	addr string // where it was last
	sure bool   // that it is there
	// reign goes up whenever the server may have changed.
	reign atomic.Uint64
}

// connect dials the server that holds the pod now. That it could not be found, or reached, says that nothing was sent.
func (p *place) connect(ctx context.Context, _, _ string) (net.Conn, error) {
	addr, reign, err := p.where(ctx)
	if err != nil {
		return nil, notSentError{err}
	}
	c, err := p.dial(ctx, addr)
	if err != nil {
		p.lost()
		return nil, notSentError{err}
	}
	return &placedConn{Conn: c, place: p, reign: reign}, nil
}

func (p *place) where(ctx context.Context) (string, uint64, error) {
	p.mu.Lock()
	addr, sure, reign := p.addr, p.sure, p.reign.Load()
	p.mu.Unlock()
	if sure && !p.always {
		return addr, reign, nil
	}
	found, err := p.find(ctx)
	if err != nil {
		return "", reign, err
	}
	return found, p.moved(found), nil
}

// moved notes where the pod is, and gives the reign of that.
func (p *place) moved(to string) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sure = true
	if p.addr == to {
		return p.reign.Load()
	}
	p.addr = to
	return p.reign.Add(1)
}

// lost: it cannot be reached where it was. The connections that there are may do.
func (p *place) lost() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sure = false
}

// doubt makes every connection of that reign one that is not used again, and the server one that has to be found.
func (p *place) doubt(reign uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reign.Load() == reign {
		p.sure = false
		p.reign.Add(1)
	}
}

// placedConn is a connection to the server that held the pod when it was dialled.
type placedConn struct {
	net.Conn
	place *place
	reign uint64
}

var errOldServer = errors.New("the pod has another server now")

// SyscallConn is what go-redis asks before it takes a connection from its pool: it drops one that gives an error.
func (c *placedConn) SyscallConn() (syscall.RawConn, error) {
	if c.place.reign.Load() != c.reign {
		return nil, errOldServer
	}
	if s, ok := c.Conn.(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return unseen{}, nil
}

// unseen is the look at a TLS connection: there may be records of its own on the socket, so nobody looks.
type unseen struct{}

func (unseen) Control(func(uintptr)) error    { return nil }
func (unseen) Read(func(uintptr) bool) error  { return nil }
func (unseen) Write(func(uintptr) bool) error { return nil }

// dialer dials one address, by TLS where the URL says so.
func dialer(c *tls.Config, timeout time.Duration) func(ctx context.Context, addr string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		d := &net.Dialer{Timeout: timeout}
		if c == nil {
			return d.DialContext(ctx, "tcp", addr)
		}
		t := &tls.Dialer{NetDialer: d, Config: named(c, addr)}
		return t.DialContext(ctx, "tcp", addr)
	}
}
