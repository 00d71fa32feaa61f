package bench

import (
	"bufio"
	"net"
	"sync"
	"testing"
	"time"
)

// echo answers each line with itself, and ends when the test does.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				r := bufio.NewReader(c)
				for {
					line, err := r.ReadBytes('\n')
					if err != nil {
						return
					}
					if _, err := c.Write(line); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return l.Addr().String()
}

// Each round trip takes the added time, and connections do not wait for each other: 20 of them do in about the time of
// one what one after the other would take 20 times as long for.
func TestTheDelayLineDelaysAndDoesNotSerialise(t *testing.T) {
	const rtt, trips, conns = 20 * time.Millisecond, 5, 20
	d, err := newDelayLine("tcp", echo(t), rtt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.close(); err != nil {
			t.Error(err)
		}
	})
	began := time.Now()
	var wg sync.WaitGroup
	for range conns {
		wg.Go(func() {
			c, err := net.Dial("tcp", d.addr())
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			r := bufio.NewReader(c)
			for range trips {
				at := time.Now()
				if _, err := c.Write([]byte("hello\n")); err != nil {
					t.Error(err)
					return
				}
				if _, err := r.ReadString('\n'); err != nil {
					t.Error(err)
					return
				}
				if took := time.Since(at); took < rtt {
					t.Errorf("a round trip took %v, less than the %v that are added", took, rtt)
				}
			}
		})
	}
	wg.Wait()
	if took := time.Since(began); took > trips*rtt*conns/2 {
		t.Errorf("%d connections took %v for %d round trips each: they waited for each other", conns, took, trips)
	}
}

// A side that ends ends the other, and an upstream that is not there is an end too.
func TestTheDelayLineEndsWithEitherSide(t *testing.T) {
	d, err := newDelayLine("tcp", "127.0.0.1:1", time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.close(); err != nil {
			t.Error(err)
		}
	})
	c, err := net.Dial("tcp", d.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("read something from nobody")
	}
}
