package diff

import (
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// entry is one operation's effect on one bucket.
type entry struct {
	span  *Span
	delta int64
	maybe bool
	// others: another router did it; the stores tell.
	others bool
}

// bucketLog holds the operations that may still overlap one that is under way or waits to be judged.
type bucketLog struct {
	entries []entry
}

// add files an entry and drops those that ended before the oldest live operation began.
func (b *bucketLog) add(en entry, oldest time.Time) {
	if len(b.entries) >= 16 && len(b.entries) == cap(b.entries) {
		b.prune(oldest)
	}
	b.entries = append(b.entries, en)
}

func (b *bucketLog) prune(oldest time.Time) {
	kept := b.entries[:0]
	for _, en := range b.entries {
		if !en.span.traces.redis.overBefore(oldest) || !en.span.traces.mysql.overBefore(oldest) {
			kept = append(kept, en)
		}
	}
	clear(b.entries[len(kept):])
	b.entries = kept
}

// closeGaps ends the gaps from before a turn of catch-up which looked at their reservations.
func (b *bucketLog) closeGaps(began, ended time.Time, covered func(reservation.ID) bool) {
	for _, en := range b.entries {
		if en.span.gap && en.span.gapAt.Before(began) && covered(en.span.pair.ID) {
			en.span.traces.redis.end(ended)
			en.span.traces.mysql.end(ended)
		}
	}
}

// spanList is the list of live spans, in order of Begin; a removal is constant time.
type spanList struct {
	head, tail *Span
	n          int
}

// push files a span by its start. All but a sweep's spans start now, so the walk from the tail is short.
func (l *spanList) push(s *Span) {
	at := l.tail
	for at != nil && at.began.After(s.began) {
		at = at.prev
	}
	s.listed = true
	l.n++
	s.prev = at
	if at == nil {
		s.next, l.head = l.head, s
	} else {
		s.next, at.next = at.next, s
	}
	if s.next == nil {
		l.tail = s
	} else {
		s.next.prev = s
	}
}

func (l *spanList) remove(s *Span) {
	if !s.listed {
		return
	}
	s.listed = false
	l.n--
	if s.prev == nil {
		l.head = s.next
	} else {
		s.prev.next = s.next
	}
	if s.next == nil {
		l.tail = s.prev
	} else {
		s.next.prev = s.prev
	}
	s.prev, s.next = nil, nil
}

// oldest is when the oldest live span began; the zero time if none is live: then nothing is pruned.
func (l *spanList) oldest() time.Time {
	if l.head == nil {
		return time.Time{}
	}
	return l.head.began
}

// undecidedBefore tells whether an operation that began before t has not heard from the truth yet.
func (l *spanList) undecidedBefore(t time.Time) bool {
	for s := l.head; s != nil && s.began.Before(t); s = s.next {
		if !s.decided {
			return true
		}
	}
	return false
}
