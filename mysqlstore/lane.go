package mysqlstore

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// A lane is where callers meet who want the same bucket for the same kind of work. Who finds it idle runs its own
// transaction, in its own goroutine; a reserve has a shared one of one member where statements may travel together, since
// that takes few round trips. Who comes while others are at work waits, and is carried out with all the others that wait,
// in one transaction that begins as soon as the one before it has ended: an idle bucket waits for nothing.
// A second transaction runs beside the first once as many wait as the first one carries: the round trips and the flush of
// one go on while the other computes.

// laneKind is what the members of a lane have in common. Each kind has lanes of its own.
type laneKind uint8

const (
	reserveLane laneKind = iota + 1 // reserves: they share unit rows, which are passed over where others hold them
	ledgerLane                      // claims, releases and expiries: they want the ledger's row
	lookLane                        // look-ups by id, of the whole store
	agreeLane                       // MySQL's halves of grants in handover
	arriveLane                      // mirrored reserves
	leaveLane                       // mirrored releases and expiries: they want the ledger's row
)

// sideBySide is how many transactions of a lane may run at once. Of those that want the ledger's row, the second one has
// come as far as to wait for it when the first one commits.
const sideBySide = 2

const (
	// laneMembers, laneLines and laneUnits bound one shared transaction, and so the locks that it holds.
	laneMembers = 256
	laneLines   = 512
	laneUnits   = 1000
	// laneWaiting bounds the callers that wait in one lane, storeWaiting those in all lanes of the store.
	laneWaiting  = 4096
	storeWaiting = 16384
)

var errLaneFull = errors.New("too many callers wait already")

type laneKey struct {
	kind   laneKind
	bucket reservation.Bucket // zero: of the whole store
}

// member is one caller's work in a lane. What it is about does not change once it has joined.
type member struct {
	ctx   context.Context //nolint:containedctx // the caller's, asked before its work begins
	stamp reservation.Stamp
	id    reservation.ID
	shop  int64
	key   string // empty: none
	lines int
	units int64
	apart bool // it never shares, and nobody runs beside it
	looks bool // it reads a record without locks
	// gathers: nobody waits for it, so it waits for company.
	gathers bool

	reserve *reserving
	ending  *ending
	arrival *arrival
	leaving *reservation.MirrorOp

	at    time.Time // when it began to wait
	begun bool      // its work has begun; guarded by lanes.mu, as solo is
	solo  bool      // it is alone in its transaction, which then ends with ctx
	told  chan word
}

// word is what a member is told.
type word struct {
	turn *turn  // not nil: run alone now, and end the turn after the first attempt
	why  string // not empty: the shared transaction did not carry it out: run alone, outside of the lane
	// prior is the shared transaction's COMMIT without a reply, and done the instant that it wrote.
	prior error
	done  time.Time

	// What the shared transaction would have answered is kept with a prior COMMIT, too.
	err     error // the answer, if it is one
	result  reservation.Result
	claim   reservation.ClaimResult
	release reservation.ReleaseResult
	deduct  reservation.Deduction
	judged  reservation.Judgement
	row     *row
}

// answered tells whether the member has its answer.
func (w word) answered() bool { return w.turn == nil && w.why == "" }

// work is the member's own transaction, after what it was told.
func (w word) work(own work) work {
	own.prior = w.prior
	if w.turn != nil {
		own.attempted = w.turn.end
	}
	return own
}

// lane is one queue. Idle ones do not exist.
type lane struct {
	key     laneKey
	queue   []*member // first come, first served
	running int       // transactions, alone or shared
	carried int       // members of these
	ripe    bool      // who waits has waited for company long enough; of lanes that gather
	timer   bool      // ends that wait
	apart   bool      // the one that runs lets none run beside it
}

// lanes are the lanes of a store.
type lanes struct {
	mu      sync.Mutex
	open    map[laneKey]*lane
	waiting int
	telling int // batches whose members are being told
}

func (l *lanes) waitingNow() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return float64(l.waiting)
}

// turn is the right to run one transaction of a lane. It ends once.
type turn struct {
	s       *Store
	l       *lane
	members int
	apart   bool
	once    sync.Once
}

func (t *turn) end() {
	if t == nil {
		return
	}
	t.once.Do(func() { t.s.leave(t) })
}

// join waits until the member's work is done or may be done by itself. It obeys the member's context: one that ends
// before its work has begun changed nothing, one that ends later leaves the outcome open.
func (s *Store) join(key laneKey, op reservation.Op, m *member) word {
	w, waits := s.line(key, m)
	if !waits {
		return w
	}
	select {
	case w := <-m.told:
		return w
	case <-m.ctx.Done():
	}
	if s.withdraw(key, m) {
		s.metrics.laneDropped.Inc()
		return word{err: unavailable(context.Cause(m.ctx))}
	}
	if m.solo {
		return <-m.told
	}
	select {
	case w := <-m.told:
		return w
	default:
	}
	if key.kind == lookLane {
		return word{err: unavailable(context.Cause(m.ctx))}
	}
	return word{err: s.outcomeUnknown(work{path: key.kind.String() + "_shared", op: op}, context.Cause(m.ctx))}
}

// line queues the member, unless it may run at once or has to be refused.
func (s *Store) line(key laneKey, m *member) (w word, waits bool) {
	s.lanes.mu.Lock()
	defer s.lanes.mu.Unlock()
	l := s.lanes.open[key]
	if l == nil {
		l = &lane{key: key}
		s.lanes.open[key] = l
	}
	if s.byItself(m) && len(l.queue) == 0 && (l.running == 0 || !m.apart && l.mayStart(1)) {
		return word{turn: s.start(l, 1, m.apart)}, false
	}
	if len(l.queue) >= laneWaiting || s.lanes.waiting >= storeWaiting {
		s.metrics.busy.WithLabelValues("lane").Inc()
		return word{err: unavailable(errLaneFull)}, false
	}
	m.told, m.at = make(chan word, 1), s.opts.Now()
	l.queue = append(l.queue, m)
	s.lanes.waiting++
	s.advance(l)
	return word{}, true
}

// mayStart tells whether a transaction may begin, if so many wait.
func (l *lane) mayStart(waiting int) bool {
	return l.running == 0 || !l.apart && waiting >= l.carried && l.running < sideBySide
}

func (s *Store) start(l *lane, members int, apart bool) *turn {
	l.running++
	l.carried += members
	l.apart = apart
	return &turn{s: s, l: l, members: members, apart: apart}
}

// withdraw takes a member out whose work has not begun.
func (s *Store) withdraw(key laneKey, m *member) bool {
	s.lanes.mu.Lock()
	defer s.lanes.mu.Unlock()
	if m.begun {
		return false
	}
	m.begun = true
	if l := s.lanes.open[key]; l != nil {
		if n := slices.Index(l.queue, m); n >= 0 {
			l.queue = slices.Delete(l.queue, n, n+1)
			s.lanes.waiting--
		}
	}
	return true
}

// leave ends one transaction of a lane, and starts what waits.
func (s *Store) leave(t *turn) {
	l := t.l
	s.lanes.mu.Lock()
	defer s.lanes.mu.Unlock()
	l.running--
	l.carried -= t.members
	l.apart = l.apart && !t.apart
	s.advance(l)
	s.close(l)
}

// gathers tells whether nobody waits for the members' answers, so that they may wait for each other.
func (k laneKind) gathers() bool { return k == arriveLane || k == leaveLane }

// gathering tells whether a lane waits for company still, and sees to it that this ends.
func (s *Store) gathering(l *lane) bool {
	if !l.key.kind.gathers() || l.ripe || s.opts.MirrorGather <= 0 {
		return false
	}
	if !l.timer && len(l.queue) > 0 {
		l.timer = true
		time.AfterFunc(s.opts.MirrorGather, func() {
			s.lanes.mu.Lock()
			defer s.lanes.mu.Unlock()
			l.ripe, l.timer = true, false
			s.advance(l)
			s.close(l)
		})
	}
	return true
}

// close forgets a lane that is idle.
func (s *Store) close(l *lane) {
	if l.running == 0 && len(l.queue) == 0 && s.lanes.open[l.key] == l {
		delete(s.lanes.open, l.key)
	}
}

// advance starts what may start.
func (s *Store) advance(l *lane) {
	if l.key.kind == lookLane && s.lanes.telling > 0 || s.gathering(l) {
		return
	}
	for len(l.queue) > 0 && l.mayStart(len(l.queue)) {
		if l.queue[0].apart && l.running > 0 {
			return
		}
		batch := s.nextBatch(l)
		if len(batch) > 0 {
			s.begin(l, batch)
		}
		if l.ripe = false; s.gathering(l) {
			return
		}
	}
}

// byItself tells whether a member that is alone runs its own transaction.
func (s *Store) byItself(m *member) bool {
	switch {
	case m.apart:
		return true
	case m.looks:
		return false
	case m.reserve != nil:
		return s.packets == nil
	default:
		return !m.gathers || s.opts.MirrorGather <= 0
	}
}

// begin starts a batch; one member that runs by itself gets the turn.
func (s *Store) begin(l *lane, batch []*member) {
	now := s.opts.Now()
	for _, m := range batch {
		s.metrics.laneWait.Observe(now.Sub(m.at).Seconds())
	}
	if len(batch) == 1 && s.byItself(batch[0]) {
		batch[0].told <- word{turn: s.start(l, 1, batch[0].apart)}
		return
	}
	if !s.enter() {
		for _, m := range batch {
			m.told <- word{err: unavailable(errClosed)}
		}
		return
	}
	batch[0].solo = len(batch) == 1 && batch[0].reserve != nil
	t := s.start(l, len(batch), false)
	go func() {
		defer s.running.Done()
		defer t.end()
		s.share(l.key.kind, batch)
		runtime.Gosched() // who was told may have more to do, which the next batch can take along
	}()
}

// tellTogether tells the members of a batch. What they ask for next is often a look at a record: it waits until all
// have been told, so that they look together.
func (s *Store) tellTogether(batch []*member, words []word) {
	s.lanes.mu.Lock()
	s.lanes.telling++
	s.lanes.mu.Unlock()
	for n, m := range batch {
		s.tell(m, words[n])
	}
	runtime.Gosched()
	s.lanes.mu.Lock()
	defer s.lanes.mu.Unlock()
	s.lanes.telling--
	if l := s.lanes.open[laneKey{kind: lookLane}]; l != nil {
		s.advance(l)
	}
}

// nextBatch takes the first that waits, and of those behind it all that can share a transaction with it, up to the
// bounds. Whoever has gone is dropped.
func (s *Store) nextBatch(l *lane) []*member {
	var b batchOf
	var rest []*member
	for n, m := range l.queue {
		if b.full() {
			rest = append(rest, l.queue[n:]...)
			break
		}
		gone := m.ctx.Err() != nil
		if !gone && !b.take(m) {
			rest = append(rest, m)
			continue
		}
		m.begun = true
		s.lanes.waiting--
		if gone {
			s.metrics.laneDropped.Inc()
			m.told <- word{err: unavailable(context.Cause(m.ctx))}
		}
	}
	l.queue = rest
	return b.members
}

// batchOf collects members that can share a transaction: of one stamp, and no two with the same id or key.
type batchOf struct {
	members []*member
	lines   int
	units   int64
	ids     map[reservation.ID]bool
	keys    map[laneKeyOf]bool
}

type laneKeyOf struct {
	shop int64
	key  string
}

func (b *batchOf) full() bool {
	return len(b.members) >= laneMembers || len(b.members) == 1 && b.members[0].apart
}

// take adds the member if it fits.
func (b *batchOf) take(m *member) bool {
	if len(b.members) == 0 {
		b.ids, b.keys = map[reservation.ID]bool{}, map[laneKeyOf]bool{}
	} else if first := b.members[0]; m.apart || m.stamp != first.stamp ||
		b.lines+m.lines > laneLines || b.units+m.units > laneUnits {
		return false
	}
	key := laneKeyOf{m.shop, m.key}
	if b.ids[m.id] || m.key != "" && b.keys[key] {
		return false
	}
	b.ids[m.id] = true
	if m.key != "" {
		b.keys[key] = true
	}
	b.members = append(b.members, m)
	b.lines += m.lines
	b.units += m.units
	return true
}
