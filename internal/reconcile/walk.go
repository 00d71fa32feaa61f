package reconcile

import (
	"context"
	"database/sql"
	"math"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// cursor is a place in a walk: everything up to it has been read. Each walk uses what its key has.
type cursor struct {
	bucket reservation.Bucket
	id     reservation.ID
	at     time.Time
}

func start() cursor {
	return cursor{bucket: reservation.Bucket{Shop: math.MinInt64}, at: time.Unix(0, 0).UTC()}
}

// bucketArgs are the arguments of afterBucket.
func (c cursor) bucketArgs() []any {
	b := c.bucket
	return []any{b.Shop, b.Shop, b.Item, b.Shop, b.Item, b.Group}
}

// beforeBucket is the place just before a bucket, beforeID the one just before an id.
func beforeBucket(b reservation.Bucket) cursor {
	c := start()
	c.bucket = b
	c.bucket.Group--
	return c
}

func beforeID(id reservation.ID) reservation.ID {
	for i := len(id) - 1; i >= 0; i-- {
		id[i]--
		if id[i] != math.MaxUint8 {
			return id
		}
	}
	return reservation.ID{}
}

// suspect is what one page saw, before anything is made of it.
type suspect struct {
	Finding
	before cursor // a page of one row after this place sees it again
}

// page is what one snapshot told.
type page struct {
	suspects []suspect
	rows     int
	last     cursor
	long     []long // journals that are too long for one snapshot
}

func (p *page) add(f Finding, before cursor) { p.suspects = append(p.suspects, suspect{f, before}) }

// walk goes through one table in the order of its key.
type walk struct {
	name string
	// rows is the first page's size: how much a row stands for is known only once one was read.
	rows int
	read func(ctx context.Context, conn *sql.Conn, src *source, after cursor, limit int) (page, error)
	// count is where a round counts the rows.
	count func(*Counts) *int
}

// Counts is what a round has read.
type Counts struct {
	Buckets, Lines, Holds, Marks, Pages int
}

func (r *Reconciler) walks() []walk {
	return []walk{
		{"buckets", 64, r.buckets, func(c *Counts) *int { return &c.Buckets }},
		{"lines", 500, r.lines, func(c *Counts) *int { return &c.Lines }},
		{"units", 64, r.units, nil},
		{"entries", 16, r.entries, nil},
		{"holds", 500, r.holds, func(c *Counts) *int { return &c.Holds }},
		{"marks", 500, r.marks, func(c *Counts) *int { return &c.Marks }},
	}
}

// walkAll reads everything from one source and calls each for what it suspects.
func (r *Reconciler) walkAll(ctx context.Context, src *source, counts *Counts, each func(walk, suspect)) error {
	for _, w := range r.walks() {
		if err := r.walkOne(ctx, src, w, counts, func(s suspect) { each(w, s) }); err != nil {
			return err
		}
	}
	return nil
}

func (r *Reconciler) walkOne(ctx context.Context, src *source, w walk, counts *Counts, each func(suspect)) error {
	after, size := start(), min(w.rows, r.opts.PageRows)
	for {
		began := time.Now()
		p, err := r.page(ctx, src, w, after, size, counts)
		if err != nil {
			return err
		}
		took := time.Since(began)
		if w.count != nil {
			*w.count(counts) += p.rows
		}
		for _, s := range p.suspects {
			each(s)
		}
		if err := r.rest(ctx, took); err != nil {
			return err
		}
		if p.rows < size {
			return nil
		}
		after, size = p.last, r.nextSize(size, took)
	}
}

// page reads one page, and the journals in it that are too long for its snapshot.
func (r *Reconciler) page(ctx context.Context, src *source, w walk, after cursor, limit int, counts *Counts) (page, error) {
	var p page
	err := src.snapshot(ctx, func(ctx context.Context, conn *sql.Conn) (err error) {
		p, err = w.read(ctx, conn, src, after, limit)
		return err
	})
	counts.Pages++
	for _, l := range p.long {
		if err != nil {
			break
		}
		err = r.walkJournal(ctx, src, l, counts, &p)
	}
	return p, err
}

// pageTarget is how long a page should take: a read view of that age is in nobody's way.
const pageTarget = 100 * time.Millisecond

// nextSize halves a page that took long and doubles one that was quick.
func (r *Reconciler) nextSize(size int, took time.Duration) int {
	switch {
	case took > pageTarget:
		return max(size/2, 1)
	case took < pageTarget/4:
		return min(size*2, r.opts.PageRows)
	default:
		return size
	}
}

// rest leaves the server to others for as long as it was just used, and a moment at least.
func (r *Reconciler) rest(ctx context.Context, took time.Duration) error {
	t := time.NewTimer(max(took, r.opts.PagePause))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
