package protocolmodel

import (
	"fmt"
	"slices"
	"strings"

	"github.com/twinhold/twinhold/reservation"
)

// Config is one small world.
type Config struct {
	// Start is the stage at the beginning: shadow or later.
	Start reservation.Stage
	// Stock is on_hand of the one bucket.
	Stock int8
	// Requests and Routers: one or two each.
	Requests, Routers uint8
	// Reserves, Claims and Releases are the attempts per request; a reserve's second one is a retry.
	Reserves, Claims, Releases uint8
	// Expiry lets time pass.
	Expiry bool
	// Complete lets flips go on to complete.
	Complete bool
	// Budget is what else may happen.
	Budget Budget
	// MaxStates ends the walk early.
	MaxStates int
	// Without are the protections left out.
	Without []Protection
}

// Result is what a walk found.
type Result struct {
	// States is the number of distinct states met.
	States int
	// Exhausted tells that there are no others.
	Exhausted bool
	// Violation names the invariant that broke first, with as few steps as can be; empty if none did.
	Violation string
	// Trace is the way there, a line a step.
	Trace []string
}

// String gives the result as a readable script.
func (r Result) String() string {
	if r.Violation == "" {
		return fmt.Sprintf("no violation in %d states, exhausted: %t", r.States, r.Exhausted)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s (%d steps, %d states met)\n", r.Violation, len(r.Trace), r.States)
	for i, line := range r.Trace {
		fmt.Fprintf(&b, "%3d. %s\n", i+1, line)
	}
	return b.String()
}

// event is one step's text, put together only when a trace is printed.
type event struct {
	who  actor
	id   uint8
	what string
}

type actor string

func (e event) String() string { return fmt.Sprintf("%s: %s [reservation %d]", e.who, e.what, e.id) }

// model is a configuration being walked.
type model struct {
	Config
	without [afterLastProtection]bool
	emit    func(state, event)
}

func (m *model) has(p Protection) bool { return !m.without[p] }

// Explore walks every state of the configuration, breadth first, until an invariant breaks or MaxStates were met.
func Explore(c Config) Result {
	m := &model{Config: c}
	for _, p := range c.Without {
		m.without[p] = true
	}
	var (
		first  = m.start()
		seen   = map[state]int32{first: 0}
		states = []state{first}
		parent = []int32{-1}
		from   int32
		broken = int32(-1)
	)
	m.emit = func(n state, _ event) {
		if _, ok := seen[n]; ok || broken >= 0 {
			return
		}
		at := int32(len(states))
		seen[n] = at
		states, parent = append(states, n), append(parent, from)
		if m.check(&n) != 0 {
			broken = at
		}
	}
	for ; int(from) < len(states) && broken < 0; from++ {
		if len(states) >= c.MaxStates {
			return Result{States: len(states)}
		}
		m.steps(states[from])
	}
	if broken < 0 {
		return Result{States: len(states), Exhausted: true}
	}
	var path []state
	for at := broken; at >= 0; at = parent[at] {
		path = append(path, states[at])
	}
	slices.Reverse(path)
	last := path[len(path)-1]
	return Result{States: len(states), Violation: m.check(&last).String(), Trace: m.script(path)}
}

// script tells a path: each step is taken again, this time for its text, and followed by what the stores then have.
func (m *model) script(path []state) []string {
	var lines []string
	for i := 1; i < len(path); i++ {
		var text string
		m.emit = func(n state, e event) {
			if text == "" && n == path[i] {
				text = e.String()
			}
		}
		m.steps(path[i-1])
		lines = append(lines, fmt.Sprintf("%-75s | %s", text, path[i].brief()))
	}
	return lines
}

func (s state) brief() string {
	name := func(r record) string {
		if !r.known() {
			return "-"
		}
		return fmt.Sprintf("%s@%d", r.state, r.epoch)
	}
	return fmt.Sprintf("redis %s,%d %s %s on_hand %d; mysql %s,%d %s %s on_hand %d",
		s.redis.fence.stage, s.redis.fence.epoch, name(s.redis.records[0]), name(s.redis.records[1]), s.redis.onHand,
		s.mysql.fence.stage, s.mysql.fence.epoch, name(s.mysql.records[0]), name(s.mysql.records[1]), s.mysql.onHand)
}

func (m *model) start() state {
	var s state
	at := stamp{1, m.Start}
	s.redis = redisStore{fence: at, onHand: m.Stock}
	s.mysql = mysqlStore{fence: at, onHand: m.Stock}
	if m.Budget.Failovers > 0 {
		s.replica = s.redis
	}
	for r := range m.Routers {
		s.routers[r].belief = at
	}
	for id := range m.Requests {
		s.callers[id] = caller{reserves: m.Reserves, claims: m.Claims, releases: m.Releases}
	}
	s.left = m.Budget
	return s
}

// steps emits everything that can happen next.
func (m *model) steps(s state) {
	m.flips(s)
	m.kills(s)
	m.fences(s)
	m.failovers(s)
	for id := range m.Requests {
		m.time(s, id)
		m.sweepers(s, id)
		m.mirror(s, id)
		m.catchUps(s, id)
	}
	for r := range m.Routers {
		m.routers(s, r)
	}
}
