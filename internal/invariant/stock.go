package invariant

import "github.com/twinhold/twinhold/reservation"

// oversell is I1: claimed + promised never exceed what was stocked.
func (c *check) oversell() {
	late := c.lateClaims()
	if c.mysql == nil {
		c.oversellByCounters(late)
		return
	}
	promises := []struct {
		store string
		units map[reservation.Bucket]int64
	}{}
	if c.redis != nil {
		promises = append(promises, struct {
			store string
			units map[reservation.Bucket]int64
		}{"Redis", c.promised(c.redisRecs)})
	}
	if !c.opts.LedgerOnly || c.redis == nil {
		promises = append(promises, struct {
			store string
			units map[reservation.Bucket]int64
		}{"MySQL", c.promised(c.mysqlRecs)})
	}
	for _, p := range promises {
		for b := range p.units {
			if c.journals[b] == nil {
				c.journals[b] = &journal{}
			}
		}
		for _, b := range inOrder(c.journals) {
			j := c.journals[b]
			excess := j.claimed + p.units[b] - j.stocked
			c.judgeExcess(b, excess, late[b], j.forced, "bucket %s: %d claimed + %d promised in %s = %d, but only %d were ever stocked",
				b, j.claimed, p.units[b], p.store, j.claimed+p.units[b], j.stocked)
		}
	}
}

// oversellByCounters is I1 where there is no ledger to look at: nothing below zero.
func (c *check) oversellByCounters(late map[reservation.Bucket]int64) {
	if c.redis == nil {
		return
	}
	forced := make(map[reservation.Bucket]int64)
	for _, a := range c.opts.PinnedAdjustments {
		if a.Force {
			forced[a.Bucket] -= a.Delta
		}
	}
	for _, b := range c.redis.Buckets {
		c.judgeExcess(b.Bucket, -b.Available, late[b.Bucket], forced[b.Bucket],
			"bucket %s: available is %d in Redis (on hand %d, held %d)", b.Bucket, b.Available, b.OnHand, b.Held)
	}
}

func (c *check) judgeExcess(b reservation.Bucket, excess, late, forced int64, format string, args ...any) {
	if excess > 0 && excess <= late+forced {
		c.r(1).Evaluated++
		c.r(1).exception("bucket %s is promised %d too often: late claims took %d and forced adjustments %d there, on record",
			b, excess, late, forced)
		return
	}
	if excess > 0 && late+forced > 0 {
		format += " (late claims on record explain %d, forced adjustments %d)"
		args = append(args, late, forced)
	}
	c.r(1).unless(excess <= 0, format, args...)
}

// pool is I2: in MySQL, pool + reserved + unpooled = on_hand, and the lines are the live records' lines.
func (c *check) pool() {
	r := c.r(2)
	fromLines := make(map[reservation.Bucket]int64)
	for _, id := range idsInOrder(c.mysql.Lines) {
		rec, known := c.mysqlRecs[id]
		if !known {
			r.violated("MySQL keeps live lines of reservation %s, which it does not know", id)
			continue
		}
		for _, l := range c.mysql.Lines[id] {
			fromLines[l.Bucket(rec.Shop)] += l.Quantity
		}
	}
	for _, b := range c.mysql.Buckets {
		r.unless(b.Pool+b.Reserved+b.Unpooled == b.OnHand,
			"bucket %s: %d in the pool + %d reserved + %d unpooled = %d, but on hand are %d",
			b.Bucket, b.Pool, b.Reserved, b.Unpooled, b.Pool+b.Reserved+b.Unpooled, b.OnHand)
		r.unless(b.Unpooled >= 0 || b.Pool == 0,
			"bucket %s: unpooled is %d while %d units are in the pool, where anybody can still take them",
			b.Bucket, b.Unpooled, b.Pool)
		r.unless(b.Pool >= 0 && b.Reserved >= 0 && b.OnHand >= 0, "bucket %s: a figure is negative: pool %d, reserved %d, on hand %d",
			b.Bucket, b.Pool, b.Reserved, b.OnHand)
		r.unless(b.Reserved == fromLines[b.Bucket], "bucket %s: reserved is %d, but its live lines sum to %d",
			b.Bucket, b.Reserved, fromLines[b.Bucket])
		delete(fromLines, b.Bucket)
	}
	for _, b := range inOrder(fromLines) {
		r.violated("bucket %s has no ledger row, but live lines of %d units", b, fromLines[b])
	}
	c.liveLines()
}

func (c *check) liveLines() {
	r := c.r(2)
	for _, id := range idsInOrder(c.mysqlRecs) {
		rec, lines := c.mysqlRecs[id], c.mysql.Lines[id]
		if !rec.State.TakesUnits() {
			r.unless(len(lines) == 0, "reservation %s is %s, but still has %d live lines in MySQL", id, rec.State, len(lines))
			continue
		}
		r.unless(sameLines(lines, rec.Lines), "reservation %s is %s with lines %s, but its live lines in MySQL are %s",
			id, rec.State, show(rec.Lines), show(lines))
	}
}

// journal is I3: on_hand is the sum of the bucket's entries.
func (c *check) journal() {
	r := c.r(3)
	for _, b := range c.mysql.Buckets {
		j := c.journals[b.Bucket]
		if j == nil {
			j = &journal{}
		}
		r.unless(j.sum == b.OnHand, "bucket %s: on hand are %d, but its %d entries sum to %d", b.Bucket, b.OnHand, j.entries, j.sum)
		r.unless(j.firstStock <= 1, "bucket %s was stocked for the first time %d times", b.Bucket, j.firstStock)
	}
	for _, b := range inOrder(c.journals) {
		if _, ok := c.ledger[b]; !ok && c.journals[b].entries > 0 {
			r.violated("bucket %s has no ledger row, but %d entries", b, c.journals[b].entries)
		}
	}
}

// counters is I4: in Redis, available = on_hand - held, and held is what the records hold.
func (c *check) counters() {
	r := c.r(4)
	held := make(map[reservation.Bucket]int64)
	for _, rec := range c.redisRecs {
		if !rec.State.TakesUnits() {
			continue
		}
		for _, l := range rec.Lines {
			held[l.Bucket(rec.Shop)] += l.Quantity
		}
	}
	for _, a := range c.opts.PinnedAdjustments {
		held[a.Bucket] -= a.Delta
	}
	seen := make(map[reservation.Bucket]bool)
	for _, b := range c.redis.Buckets {
		seen[b.Bucket] = true
		r.unless(b.Available == b.OnHand-b.Held, "bucket %s: available is %d in Redis, but on hand %d - held %d = %d",
			b.Bucket, b.Available, b.OnHand, b.Held, b.OnHand-b.Held)
		r.unless(b.Held == held[b.Bucket], "bucket %s: held is %d in Redis, but its live reservations sum to %d",
			b.Bucket, b.Held, held[b.Bucket])
		delete(held, b.Bucket)
		c.sameFigures(b)
	}
	for _, b := range inOrder(held) {
		r.violated("bucket %s has no counters in Redis, but live reservations of %d units", b, held[b])
	}
	for _, b := range inOrder(c.ledger) {
		if !seen[b] && c.opts.Settled {
			r.violated("bucket %s is in the ledger, but has no counters in Redis", b)
		}
	}
}

// sameFigures compares Redis's copy of the ledger with the ledger. While things are in flight it may be behind, but
// never ahead, and one version has one figure.
func (c *check) sameFigures(b reservation.BucketState) {
	if c.mysql == nil {
		return
	}
	r := c.r(4)
	l, ok := c.ledger[b.Bucket]
	if !ok {
		r.violated("bucket %s has counters in Redis, but no ledger row in MySQL", b.Bucket)
		return
	}
	r.unless(b.Version <= l.Version, "bucket %s: Redis is at version %d of the ledger, which is only at %d", b.Bucket, b.Version, l.Version)
	if b.Version == l.Version {
		r.unless(b.OnHand == l.OnHand, "bucket %s: at version %d Redis says %d on hand, the ledger %d",
			b.Bucket, b.Version, b.OnHand, l.OnHand)
	} else if c.opts.Settled && b.Version < l.Version {
		r.violated("bucket %s: Redis is still at version %d (%d on hand), the ledger at %d (%d on hand)",
			b.Bucket, b.Version, b.OnHand, l.Version, l.OnHand)
	}
}
