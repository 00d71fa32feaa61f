package faultproxy

import (
	"bufio"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// wire cuts one connection's streams into messages.
type wire interface {
	// handshake forwards what comes before the first command.
	handshake(client, server *bufio.Reader, toClient, toServer func([]byte)) error
	// request reads one whole command.
	request(client *bufio.Reader) (request, error)
	// solicited reports whether what begins with this byte answers a request.
	solicited(first byte) bool
	// reply reads one whole reply to a request of this kind (0: to none), piece
	// by piece.
	reply(server *bufio.Reader, kind byte, emit func([]byte)) error
}

// request is one message of the client.
type request struct {
	raw     []byte // as it is forwarded
	message []byte // as rules see it
	kind    byte   // what the wire must know to read the reply
	silent  bool   // no reply is due
	fault   *Fault // an After fault that waits for the reply
}

const (
	heard      int32 = iota // everything passes
	swallowed               // nothing passes any more, but the server learns when the client goes
	blackholed              // nor that
)

// link is one client's connection and the one to the server that belongs to it.
type link struct {
	p      *Proxy
	client *net.TCPConn
	wire   wire
	quiet  atomic.Int32
	ended  chan struct{} // closed by shut
	once   sync.Once

	mu     sync.Mutex
	server *net.TCPConn // nil until dialled
	due    []request    // forwarded, not yet answered
}

func newLink(p *Proxy, c *net.TCPConn) *link {
	l := &link{p: p, client: c, ended: make(chan struct{}), wire: respWire{}}
	if p.protocol == MySQL {
		l.wire = &mysqlWire{}
	}
	return l
}

// shut closes both sides.
func (l *link) shut() {
	l.once.Do(func() {
		close(l.ended)
		_ = l.client.Close()
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.server != nil {
			_ = l.server.Close()
		}
	})
}

// reset closes both sides, the client's with a TCP reset.
func (l *link) reset() {
	_ = l.client.SetLinger(0)
	l.shut()
}

func (l *link) run() {
	defer l.shut()
	if l.quiet.Load() == blackholed {
		_, _ = io.Copy(io.Discard, l.client)
		return
	}
	if !l.dial() {
		l.reset()
		return
	}
	client, server := bufio.NewReaderSize(l.client, 32<<10), bufio.NewReaderSize(l.server, 32<<10)
	up, down := newDelayLine(l), newDelayLine(l)
	var wg sync.WaitGroup
	wg.Go(func() {
		up.run(l.server)
		_ = l.server.CloseWrite()
	})
	wg.Go(func() {
		down.run(l.client)
		if l.quiet.Load() == blackholed {
			<-l.ended // the client does not learn of it before Allow
		}
		l.shut()
	})
	if err := l.wire.handshake(client, server, down.send, up.send); err != nil {
		close(down.chunks)
	} else {
		wg.Go(func() {
			defer close(down.chunks)
			l.replies(server, down)
		})
		l.requests(client, up)
	}
	close(up.chunks)
	wg.Wait()
}

func (l *link) dial() bool {
	c, err := net.DialTimeout("tcp", l.p.upstream, 5*time.Second)
	if err != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.ended: // shut while dialling
		_ = c.Close()
		return false
	default:
		l.server = c.(*net.TCPConn)
		return true
	}
}

// requests forwards the client's messages until one side is gone.
func (l *link) requests(client *bufio.Reader, up *delayLine) {
	for {
		req, err := l.wire.request(client)
		if err != nil {
			if l.quiet.Load() == blackholed {
				<-l.ended // the server does not learn of it before Allow
			}
			return
		}
		if l.quiet.Load() != heard {
			continue
		}
		if f := l.p.match(req.message); f != nil {
			if f.rule.When == After && !req.silent {
				req.fault = f
			} else if !l.strike(f) {
				continue
			}
		}
		if !req.silent {
			l.mu.Lock()
			l.due = append(l.due, req)
			l.mu.Unlock()
		}
		up.send(req.raw)
	}
}

// strike carries a fault out, and reports whether what it struck goes on.
func (l *link) strike(f *Fault) bool {
	switch f.action {
	case cut:
		f.fire(l.shut)
	case swallow:
		f.fire(func() { l.quiet.CompareAndSwap(heard, swallowed) })
	case hold:
		f.fire(func() {})
		select {
		case <-f.released:
			return true
		case <-l.ended:
		}
	}
	return false
}

// replies forwards the server's replies until one side is gone.
func (l *link) replies(server *bufio.Reader, down *delayLine) {
	for {
		first, err := server.Peek(1)
		if err != nil {
			return
		}
		var req request
		if l.wire.solicited(first[0]) {
			req = l.nextDue()
		}
		var kept [][]byte
		emit := down.send
		if req.fault != nil {
			emit = func(b []byte) { kept = append(kept, b) }
		}
		if err := l.wire.reply(server, req.kind, emit); err != nil {
			return
		}
		if req.fault != nil && l.strike(req.fault) {
			for _, b := range kept {
				down.send(b)
			}
		}
	}
}

func (l *link) nextDue() request {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.due) == 0 {
		return request{}
	}
	req := l.due[0]
	l.due = l.due[1:]
	return req
}

// delayLine writes what it is given after half a round trip.
type delayLine struct {
	l *link
	// Deep enough that a reader does not wait for what is still on its way.
	chunks chan chunk
}

type chunk struct {
	at time.Time
	b  []byte
}

func newDelayLine(l *link) *delayLine { return &delayLine{l, make(chan chunk, 1024)} }

func (d *delayLine) send(b []byte) {
	select {
	case d.chunks <- chunk{time.Now().Add(d.l.p.oneWay()), b}:
	case <-d.l.ended:
	}
}

// run writes until the line is closed and empty, or the link is shut.
func (d *delayLine) run(to io.Writer) {
	w := bufio.NewWriterSize(to, 32<<10)
	for c := range d.chunks {
		if wait := time.Until(c.at); wait > 0 {
			if w.Flush() != nil || !d.sleep(wait) {
				continue // to the end: the sender must not block
			}
		}
		if d.l.quiet.Load() != heard {
			continue
		}
		_, _ = w.Write(c.b) // Flush says it again
		if len(d.chunks) == 0 {
			_ = w.Flush() // the reading side notices a broken connection
		}
	}
	_ = w.Flush()
}

func (d *delayLine) sleep(t time.Duration) bool {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-d.l.ended:
		return false
	}
}
