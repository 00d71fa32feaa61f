package shadow

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/twinhold/twinhold/reservation"
)

// maxExamples bounds how many of each kind a survey names.
const maxExamples = 20

// Kinds of what a survey names.
const (
	KindMissing     = "missing"
	KindMarked      = "marked"
	KindUnconfirmed = "unconfirmed"
	KindDiffering   = "differing"
	KindLagging     = "lagging"
	KindOlderLive   = "older_live"
	KindOlderFinal  = "older_final"
)

// Survey is what a dry round found: how far each store is a complete copy of the other.
type Survey struct {
	Pod          string
	Began, Ended time.Time
	Redis, MySQL reservation.Fence // as given
	// Walked counts reservations; Young ones are within the settle time and in no other count but pins, provisional
	// ones and Older.
	Walked, Young int
	// Missing is live in Redis, and MySQL has it not live, nor in a higher state.
	Missing reservation.Debt
	// Marked and Unconfirmed are live in MySQL, and Redis lacks them: somebody was promised the marked ones; an
	// unconfirmed one is left to its retry or its expiry.
	Marked, Unconfirmed reservation.Debt
	// Differing counts ended reservations and rejections whose states differ, or that one store lacks.
	Differing int
	// Unreadable counts records that a store has and that cannot be read. They are Differing too.
	Unreadable int
	// Marks is how many marks are outstanding in MySQL.
	Marks int64
	// Pins are claims under way, Provisional ones are Redis's half of a grant in handover.
	Pins, Provisional int
	// ShortBuckets have more promised than there is in MySQL (unpooled below zero); Short names some of them.
	ShortBuckets int
	Short        []reservation.Bucket
	// Lagging counts buckets of which Redis has an older version than the ledger.
	Lagging int
	// Older is the same restricted to records of epochs older than the handover's.
	Older Older
	// Examples names some of each kind, at most 20.
	Examples map[string][]string
}

// Older counts what the gate of cutover waits for, among the records of older epochs than the handover's (before a
// handover: than the next one's, which is all of them). They are a closed set: none can be added.
type Older struct {
	// Live counts those that are live in one store only; Unconfirmed of them are MySQL's, and nobody was promised them.
	Live, Unconfirmed int
	// Final counts ended ones and rejections that MySQL has not, or has in another state.
	Final int
}

// Debt is what one store promised and the other lacks, both ways.
func (s Survey) Debt() reservation.Debt {
	sum := s.Missing
	for _, d := range []reservation.Debt{s.Marked, s.Unconfirmed} {
		sum.Reservations += d.Reservations
		sum.Units += d.Units
		sum.DrainsInS = max(sum.DrainsInS, d.DrainsInS)
	}
	return sum
}

// ReadyForCutover tells whether the gate of cutover passes, and if not, all that it waits for.
func (s Survey) ReadyForCutover() (ok bool, reasons []string) {
	wait := func(on bool, format string, args ...any) {
		if on {
			reasons = append(reasons, fmt.Sprintf(format, args...))
		}
	}
	wait(s.Redis.Stage != reservation.Handover, "Redis is in stage %s, not in handover", s.Redis.Stage)
	wait(s.Redis.Suspect, "Redis is suspect and has to be restored")
	wait(s.Redis.Killed, "the pod is killed: %s", s.Redis.Latch)
	wait(s.MySQL.Stamp != s.Redis.Stamp, "MySQL's fence is at epoch %d, %s; Redis's at epoch %d, %s",
		s.MySQL.Epoch, s.MySQL.Stage, s.Redis.Epoch, s.Redis.Stage)
	wait(s.Marks > 0, "%d marks are outstanding", s.Marks)
	wait(s.ShortBuckets > 0, "%d buckets have promised more than they hold in MySQL, such as %v", s.ShortBuckets, s.Short)
	wait(s.Older.Live > 0, "%d older reservations are live in one store only, %d of them unconfirmed, such as %v",
		s.Older.Live, s.Older.Unconfirmed, s.some(KindOlderLive))
	wait(s.Older.Final > 0, "%d older ended reservations or rejections are not in MySQL in the same state, such as %v",
		s.Older.Final, s.some(KindOlderFinal))
	wait(s.Unreadable > 0, "%d records cannot be read, such as %v", s.Unreadable, s.some(KindDiffering))
	return len(reasons) == 0, reasons
}

// some gives a few examples, for a sentence.
func (s Survey) some(kind string) []string { return s.Examples[kind][:min(3, len(s.Examples[kind]))] }

// Survey is a dry round: it reads both stores, writes nothing, and counts. Both fences are read before it begins.
func (c *CatchUp) Survey(ctx context.Context, redis, mysql reservation.Fence) (Survey, error) {
	s := Survey{Pod: c.opt.Pod, Began: c.opt.Now(), Redis: redis, MySQL: mysql, Examples: map[string][]string{}}
	var differ []view
	var mu sync.Mutex
	_, err := c.walk(ctx, redis, whole(), func(_ context.Context, _ int, v view) error {
		now := c.opt.StoreNow()
		mu.Lock()
		defer mu.Unlock()
		switch {
		case v.bad != nil:
			s.countUnreadable(v)
		case !c.count(&s, v, now):
		case len(differ) < maxLooks:
			differ = append(differ, v)
		default:
			s.countDifference(v, v.facts(), now)
		}
		return nil
	})
	if err == nil {
		err = c.lookAgain(ctx, &s, differ)
	}
	if err != nil {
		return s, err
	}
	if _, s.Marks, err = c.opt.MySQL.MarksDebt(ctx); err != nil {
		return s, c.reading(reservation.MySQL, err)
	}
	err = c.ledger(ctx, func(figs []reservation.Figures) error { return c.countBuckets(ctx, &s, figs) })
	s.Ended = c.opt.Now()
	if err == nil {
		c.metrics.show(s.Lacks())
	}
	return s, err
}

// maxLooks bounds the differences that are looked at again. So many are no lag of a mirror.
const maxLooks = 2000

// lookAgain counts what still differs after the settle time: the mirror of a busy pod is always a little behind, and what
// is on its way to it is no lack. A caller who has no time for that gets what was seen.
func (c *CatchUp) lookAgain(ctx context.Context, s *Survey, differ []view) error {
	if len(differ) == 0 {
		return nil
	}
	deadline, bounded := ctx.Deadline()
	again := c.opt.Settle > 0 && (!bounded || time.Until(deadline) > 2*c.opt.Settle)
	if again {
		t := time.NewTimer(c.opt.Settle)
		defer t.Stop()
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.C:
		}
	}
	if again {
		group, looking := errgroup.WithContext(ctx)
		group.SetLimit(workers)
		for i := range differ {
			group.Go(func() (err error) {
				differ[i], err = c.look(looking, differ[i].id(), differ[i].fence)
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
	}
	for _, v := range differ {
		if v.bad != nil {
			s.countUnreadable(v)
			continue
		}
		if f := v.facts(); v.any() != nil && f.redis != f.mysql {
			s.countDifference(v, f, c.opt.StoreNow())
		}
	}
	return nil
}

func (s *Survey) countUnreadable(v view) {
	s.Unreadable++
	s.Differing++
	s.name(KindDiffering, v.bad.Error())
}

// handoverEpoch is the one that older records are older than.
func (s *Survey) handoverEpoch() uint64 {
	if s.Redis.Stage == reservation.Handover {
		return s.Redis.Epoch
	}
	return s.Redis.Epoch + 1
}

// count counts one reservation, and tells whether it differs and is not too young to.
func (c *CatchUp) count(s *Survey, v view, now time.Time) bool {
	f := v.facts()
	if v.purged(now) {
		return false
	}
	s.Walked++
	if f.redis == reservation.Claiming {
		s.Pins++
	}
	if f.redis == reservation.Provisional {
		s.Provisional++
	}
	s.countOlder(v, f)
	if f.redis == f.mysql {
		return false
	}
	if v.lastStep().After(now.Add(-c.opt.Settle)) {
		s.Young++
		return false
	}
	return true
}

// countOlder is the gate of cutover, for one reservation. A provisional hold is live in no store.
func (s *Survey) countOlder(v view, f facts) {
	epoch := s.handoverEpoch()
	inRedis := v.redis != nil && v.redis.Epoch < epoch
	inMySQL := v.mysql != nil && v.mysql.Epoch < epoch
	if (inRedis || inMySQL) && f.redis.Live() != f.mysql.Live() {
		s.Older.Live++
		if f.unanswered() {
			s.Older.Unconfirmed++
		}
		s.example(KindOlderLive, v, f)
	}
	if inRedis && f.redis.Final() && f.mysql != f.redis {
		s.Older.Final++
		s.example(KindOlderFinal, v, f)
	}
}

// unanswered: only MySQL holds it, and nobody marked it.
func (f facts) unanswered() bool {
	return f.mysql.Live() && !f.marked && (f.redis == 0 || f.redis == reservation.Provisional)
}

func (s *Survey) countDifference(v view, f facts, now time.Time) {
	kind := f.lacks()
	if kind == "" {
		return
	}
	l := s.Lacks()
	l.count(kind, v, now)
	s.Missing, s.Marked, s.Unconfirmed, s.Differing = l.Missing, l.Marked, l.Unconfirmed, l.Differing
	s.example(kind, v, f)
}

func add(d *reservation.Debt, rec *reservation.Record, now time.Time) {
	d.Reservations++
	d.Units += units(rec)
	d.DrainsInS = max(d.DrainsInS, rec.ExpiresAt.Sub(now).Seconds())
}

func units(rec *reservation.Record) int64 {
	var n int64
	for _, l := range rec.Lines {
		n += l.Quantity
	}
	return n
}

func (s *Survey) example(kind string, v view, f facts) {
	s.name(kind, fmt.Sprintf("%s: redis %s, mysql %s, expires %s",
		v.any().ID, stateName(f.redis), stateName(f.mysql), v.any().ExpiresAt.Format(time.RFC3339)))
}

func (s *Survey) name(kind, what string) {
	if len(s.Examples[kind]) < maxExamples {
		s.Examples[kind] = append(s.Examples[kind], what)
	}
}

// countBuckets looks at a page of the ledger: what is promised beyond it, and what Redis lacks of it.
func (c *CatchUp) countBuckets(ctx context.Context, s *Survey, figs []reservation.Figures) error {
	for _, f := range figs {
		a, err := c.opt.MySQL.Availability(ctx, f.Bucket)
		if err != nil {
			return c.reading(reservation.MySQL, err)
		}
		if a.Available < 0 {
			s.ShortBuckets++
			if len(s.Short) < maxExamples {
				s.Short = append(s.Short, f.Bucket)
			}
		}
		version, err := c.redisVersion(ctx, f.Bucket)
		if err != nil {
			return err
		}
		if version < f.Version {
			s.Lagging++
			s.name(KindLagging, fmt.Sprintf("%s: version %d in Redis, %d in the ledger", f.Bucket, version, f.Version))
		}
	}
	return nil
}
