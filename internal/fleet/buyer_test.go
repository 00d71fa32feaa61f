package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// answer is the JSON of every answer of the data API, errors too.
type answer struct {
	Code    string `json:"code"`
	Message string `json:"message"`

	ReservationID string    `json:"reservationId"`
	Outcome       string    `json:"outcome"`
	State         string    `json:"state"`
	ExpiresAt     time.Time `json:"expiresAt"`
	DecidedBy     string    `json:"decidedBy"`
	Epoch         string    `json:"epoch"`
	Replayed      bool      `json:"replayed"`
	Late          bool      `json:"late"`

	Available, Held, OnHand string
}

func stateOf(s string) reservation.State {
	if s == "REFUND_REQUIRED" {
		return reservation.Refused
	}
	st, err := reservation.ParseState(strings.ToLower(s))
	if err != nil {
		return 0
	}
	return st
}

// post makes one call. An error means that no answer came.
func (f *fleet) post(ctx context.Context, r *router, method string, body any, within time.Duration) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	text, err := json.Marshal(body)
	if err != nil {
		return answer{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, urlOf(r, method), bytes.NewReader(text))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Connect-Timeout-Ms", strconv.FormatInt(within.Milliseconds(), 10))
	res, err := f.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	text, err = io.ReadAll(res.Body)
	if err != nil {
		return answer{}, err
	}
	var a answer
	if err := json.Unmarshal(text, &a); err != nil {
		return answer{}, fmt.Errorf("%s: %w: %s", res.Status, err, text)
	}
	if res.StatusCode == http.StatusOK {
		a.Code = "ok"
	}
	return a, nil
}

// ask makes one attempt of a call and notes what came of it.
func (f *fleet) ask(ctx context.Context, r *router, c call, ttl, within time.Duration) call {
	c.Router, c.Begin = r.name, f.history.now()
	a, err := f.post(ctx, r, methodOf(c.Op), bodyOf(c, ttl), within)
	c.End = f.history.now()
	if err != nil {
		c.Code, c.Message = "none", err.Error()
	} else {
		c.told(f.history, a)
	}
	f.history.add(c)
	return c
}

func (c *call) told(h *history, a answer) {
	c.Code, c.Message = a.Code, a.Message
	c.Outcome, c.State, c.DecidedBy, c.Replayed, c.Late = a.Outcome, stateOf(a.State), a.DecidedBy, a.Replayed, a.Late
	c.Epoch, _ = strconv.ParseUint(a.Epoch, 10, 64) // absent in the answers that have none
	c.ExpiresAt = h.since(a.ExpiresAt)
	if a.ReservationID != "" {
		c.ID = a.ReservationID
	}
}

func methodOf(op string) string {
	return map[string]string{"reserve": "Reserve", "claim": "Claim", "release": "Release", "get": "GetReservation"}[op]
}

func bodyOf(c call, ttl time.Duration) map[string]any {
	body := map[string]any{"shopId": strconv.FormatInt(c.Shop, 10)}
	if c.Op != "reserve" {
		body["reservationId"] = c.ID
		return body
	}
	lines := make([]map[string]any, len(c.Lines))
	for i, l := range c.Lines {
		lines[i] = map[string]any{"itemId": strconv.FormatInt(l.Item, 10), "groupId": strconv.FormatInt(l.Group, 10), "quantity": l.Quantity}
	}
	body["idempotencyKey"], body["lines"] = c.Key, lines
	body["ttl"] = strconv.FormatFloat(ttl.Seconds(), 'f', 3, 64) + "s"
	return body
}

// insistence is how a buyer retries.
type insistence struct {
	attempt time.Duration // for one answer
	total   time.Duration // after which he gives up
}

func patient() insistence { return insistence{attempt: 2 * time.Second, total: 15 * time.Second} }

// insist asks until somebody decides: the same key or id again, through another router each time.
func (f *fleet) insist(ctx context.Context, r *rand.Rand, c call, ttl time.Duration, how insistence) call {
	deadline := f.history.now() + how.total
	wait := 10 * time.Millisecond
	var last string
	for {
		rt := f.anyRouter(r, last)
		if rt != nil {
			got := f.ask(ctx, rt, c, ttl, how.attempt)
			if last = rt.name; !got.undecided() || f.history.now() > deadline {
				return got
			}
		}
		if !pause(ctx, wait/2+time.Duration(r.Int64N(int64(wait)))) || f.history.now() > deadline {
			c.Code = "none"
			return c
		}
		wait = min(2*wait, 250*time.Millisecond)
	}
}

// anyRouter draws a router, another one than last where there is one.
func (f *fleet) anyRouter(r *rand.Rand, last string) *router {
	var to []*router
	up := f.running()
	for _, rt := range up {
		if rt.name != last {
			to = append(to, rt)
		}
	}
	if len(to) == 0 {
		to = up
	}
	if len(to) == 0 {
		return nil
	}
	return to[r.IntN(len(to))]
}

// market is what the buyers buy, and how.
type market struct {
	tag     string // of its keys, where a test has several
	seed    uint64
	buyers  int
	buckets [][]reservation.Bucket // by pod
	ttls    []time.Duration
	think   [2]time.Duration // between two purchases
	decide  [2]time.Duration // between a hold and its claim or release
	how     insistence
	// maxLines and maxQuantity of a cart; default 3.
	maxLines, maxQuantity int

	bought atomic.Int64
	stop   context.CancelFunc
	all    sync.WaitGroup
}

// open lets the buyers in. close waits until the last one has left.
func (m *market) open(ctx context.Context, f *fleet) {
	if m.maxLines == 0 {
		m.maxLines = 3
	}
	if m.maxQuantity == 0 {
		m.maxQuantity = 3
	}
	if m.how == (insistence{}) {
		m.how = patient()
	}
	stopping, cancel := context.WithCancel(ctx)
	m.stop = cancel
	for n := range m.buyers {
		m.all.Go(func() {
			r := newRand(m.seed, n)
			for i := 0; stopping.Err() == nil; i++ {
				m.purchase(ctx, stopping, f, r, fmt.Sprintf("%sb%d-%d", m.tag, n, i))
				if !pause(stopping, between(r, m.think[0], m.think[1])) {
					return
				}
			}
		})
	}
}

// close: nobody begins a new purchase; those that were begun are carried through.
func (m *market) close() {
	m.stop()
	m.all.Wait()
}

// purchase is one buyer's whole visit.
func (m *market) purchase(ctx, stopping context.Context, f *fleet, r *rand.Rand, key string) {
	c := call{Op: "reserve", Key: key, Lines: nil}
	c.Shop, c.Lines = m.cart(r)
	ttl := m.ttls[r.IntN(len(m.ttls))]
	got := f.insist(ctx, r, c, ttl, m.how)
	m.bought.Add(1)
	if r.IntN(10) == 0 { // a shop that asks once more
		f.insist(ctx, r, c, ttl, m.how)
	}
	if got.Code != "ok" || got.Outcome != "GRANTED" {
		return
	}
	pause(stopping, between(r, m.decide[0], m.decide[1]))
	end := call{Shop: c.Shop, Key: key, ID: got.ID}
	switch n := r.IntN(20); {
	case n < 9:
		m.end(ctx, f, r, end, "claim")
	case n < 13:
		m.end(ctx, f, r, end, "release")
	case n < 14: // two who do not know of each other
		m.end(ctx, f, r, end, "claim", "release")
	case n < 15:
		m.end(ctx, f, r, end, "claim", "claim")
	default: // given up: it expires
	}
	if r.IntN(8) == 0 {
		f.insist(ctx, r, c, ttl, m.how)
	}
}

// end claims or releases, all of ops at once.
func (m *market) end(ctx context.Context, f *fleet, r *rand.Rand, c call, ops ...string) {
	var wg sync.WaitGroup
	for i, op := range ops {
		own := newRand(r.Uint64(), i)
		one := c
		one.Op = op
		wg.Go(func() { f.insist(ctx, own, one, 0, m.how) })
	}
	wg.Wait()
}

// cart draws a pod, and lines of different buckets of one of its shops.
func (m *market) cart(r *rand.Rand) (shop int64, lines []reservation.Line) {
	buckets := m.buckets[r.IntN(len(m.buckets))]
	n := 1
	if r.IntN(3) == 0 {
		n = 1 + r.IntN(min(m.maxLines, len(buckets)))
	}
	for _, i := range r.Perm(len(buckets))[:n] {
		b := buckets[i]
		lines = append(lines, reservation.Line{Item: b.Item, Group: b.Group, Quantity: 1 + r.Int64N(int64(m.maxQuantity))})
	}
	return buckets[0].Shop, lines
}

// restock receives stock by the API, with retries of the same adjustment.
func (f *fleet) restock(ctx context.Context, r *rand.Rand, b reservation.Bucket, delta int64, id string) error {
	began := f.history.now()
	f.history.stocked(b, delta, began)
	body := map[string]any{
		"shopId": strconv.FormatInt(b.Shop, 10), "itemId": strconv.FormatInt(b.Item, 10), "groupId": strconv.FormatInt(b.Group, 10),
		"delta": strconv.FormatInt(delta, 10), "adjustmentId": id,
	}
	var last string
	for deadline := began + 30*time.Second; f.history.now() < deadline && ctx.Err() == nil; pause(ctx, 50*time.Millisecond) {
		rt := f.anyRouter(r, "")
		if rt == nil {
			continue
		}
		a, err := f.post(ctx, rt, "AdjustStock", body, 3*time.Second)
		if err == nil && a.Code == "ok" {
			return nil
		}
		last = fmt.Sprintf("%s: %s %s %v", rt.name, a.Code, a.Message, err)
	}
	return fmt.Errorf("restock %s by %d (%s): %s", b, delta, id, last)
}
