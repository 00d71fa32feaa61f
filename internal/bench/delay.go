package bench

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"
)

// delayLine stands between this process and a server, and delays each direction by half a round trip. It forwards
// bytes and understands none. What is on its way on one connection does not wait for another's: all are delayed by
// the same, so one queue a direction, in order of arrival, is all it takes.
//
// (The proxy of package faultproxy reads both protocols to break them at a message. A round trip of a small message
// through it took 70 to 75 us of CPU, and 25 to 40 us through this line, which on two cores is measured too.)
type delayLine struct {
	network, upstream string
	listener          net.Listener
	oneWay            time.Duration
	up, down          chan parcel
	ended             chan struct{}
	wg                sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

// parcel is bytes on their way; without bytes, the end of a connection.
type parcel struct {
	due time.Time
	to  net.Conn
	b   []byte
}

const (
	parcelQueue = 4096
	parcelSize  = 16 << 10
	dialTimeout = 5 * time.Second
)

func newDelayLine(network, upstream string, rtt time.Duration) (*delayLine, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("delay line: %w", err)
	}
	d := &delayLine{
		network: network, upstream: upstream, listener: l, oneWay: rtt / 2, conns: map[net.Conn]struct{}{},
		up: make(chan parcel, parcelQueue), down: make(chan parcel, parcelQueue), ended: make(chan struct{}),
	}
	d.wg.Go(d.accept)
	d.wg.Go(func() { d.deliver(d.up) })
	d.wg.Go(func() { d.deliver(d.down) })
	return d, nil
}

func (d *delayLine) addr() string { return d.listener.Addr().String() }

// close cuts all connections and waits until nothing of the line runs.
func (d *delayLine) close() error {
	d.mu.Lock()
	d.closed = true
	for c := range d.conns {
		_ = c.Close()
	}
	d.mu.Unlock()
	err := d.listener.Close()
	close(d.ended)
	d.wg.Wait()
	return err
}

func (d *delayLine) accept() {
	for {
		client, err := d.listener.Accept()
		if err != nil {
			return // closed
		}
		d.wg.Go(func() { d.link(client) })
	}
}

func (d *delayLine) link(client net.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	server, err := new(net.Dialer).DialContext(ctx, d.network, d.upstream)
	cancel()
	if err != nil || !d.keep(client, server) {
		_ = client.Close()
		return
	}
	var both sync.WaitGroup
	both.Go(func() { d.carry(client, server, d.up) })
	both.Go(func() { d.carry(server, client, d.down) })
	both.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.conns, client)
	delete(d.conns, server)
}

func (d *delayLine) keep(client, server net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		_ = server.Close()
		return false
	}
	d.conns[client], d.conns[server] = struct{}{}, struct{}{}
	return true
}

// carry reads until one side ends, and then ends the other, after what is on its way.
func (d *delayLine) carry(from, to net.Conn, line chan<- parcel) {
	buf := make([]byte, parcelSize)
	for {
		n, err := from.Read(buf)
		if n > 0 && !d.send(line, parcel{to: to, b: append([]byte(nil), buf[:n]...)}) {
			return
		}
		if err != nil {
			_ = from.Close()
			d.send(line, parcel{to: to})
			return
		}
	}
}

func (d *delayLine) send(line chan<- parcel, p parcel) bool {
	p.due = time.Now().Add(d.oneWay)
	select {
	case line <- p:
		return true
	case <-d.ended:
		return false
	}
}

// deliver writes each parcel when it is due. Parcels are small and their receivers wait for them, so a write does not
// block.
func (d *delayLine) deliver(line <-chan parcel) {
	for {
		select {
		case p := <-line:
			sleepUntil(p.due)
			if p.b == nil {
				_ = p.to.Close()
			} else if _, err := p.to.Write(p.b); err != nil {
				_ = p.to.Close()
			}
		case <-d.ended:
			return
		}
	}
}
