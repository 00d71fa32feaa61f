package bench

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// pod is the one of the scratch schema. Its stage is complete: MySQL decides alone.
const pod = "bench"

func stamp() reservation.Stamp { return reservation.Stamp{Epoch: 1, Stage: reservation.Complete} }

// poolScheme is package mysqlstore as it stands, with or without combining.
func poolScheme(name, what string, alone bool) scheme {
	return scheme{
		name: name, what: what, setUp: setUpPool, read: readPool,
		open: func(ctx context.Context, j Job) (session, error) { return openPool(ctx, j, alone) },
	}
}

// storeOptions are the product's defaults, but for what is measured.
func storeOptions(dsn string, alone bool) mysqlstore.Options {
	return mysqlstore.Options{DSN: dsn, Pod: pod, NoLanes: alone}
}

// maxFilled is how many pools are filled before anything is measured. With more buckets, their first refills are part of
// what is measured.
const maxFilled = 1000

func setUpPool(ctx context.Context, p place, stock int64) (int64, error) {
	if err := mysqlstore.Migrate(ctx, p.DSN); err != nil {
		return 0, err
	}
	s, err := mysqlstore.Open(ctx, storeOptions(p.DSN, true))
	if err != nil {
		return 0, err
	}
	defer s.Close()
	if _, err := s.InitFence(ctx, stamp()); err != nil {
		return 0, fmt.Errorf("set the fence of the pool: %w", err)
	}
	st := make([]reservation.Stocking, p.Buckets)
	for n := range st {
		st[n] = reservation.Stocking{Bucket: bucketOf(n), Quantity: stock}
	}
	if _, _, err := s.Stock(ctx, stamp(), st); err != nil {
		return 0, fmt.Errorf("stock the pool: %w", err)
	}
	if stock == 0 {
		return 0, nil
	}
	return fillPools(ctx, &pool{store: s, lines: 1}, min(p.Buckets, maxFilled))
}

// fillPools reserves a unit of each bucket, which fills its pool.
func fillPools(ctx context.Context, s *pool, buckets int) (int64, error) {
	for n := range buckets {
		id, err := reservation.NewID()
		if err != nil {
			return int64(n), err
		}
		if _, err := s.reserve(ctx, call{id: id, key: id.String(), bucket: n}); err != nil {
			return int64(n), fmt.Errorf("fill the pool of bucket %s: %w", bucketOf(n), err)
		}
	}
	return int64(buckets), nil
}

func bucketOf(n int) reservation.Bucket {
	return reservation.Bucket{Shop: shop, Item: int64(n) + 1, Group: group}
}

// readPool sums each table, and compares the sums (I2, I3).
func readPool(ctx context.Context, p place, stock int64) (books, error) {
	db, err := openRows(p.DSN, 1)
	if err != nil {
		return books{}, err
	}
	defer db.Close()
	b := books{stock: stock * int64(p.Buckets)}
	var onHand, unpooled, units, entries int64
	err = db.QueryRowContext(ctx, qPoolBooks).Scan(&onHand, &unpooled, &units, &b.held, &b.granted, &b.rejected, &b.released, &entries)
	if err != nil {
		return b, fmt.Errorf("read the pool: %w", err)
	}
	b.left = unpooled + units
	b.claimed = b.stock - onHand
	switch {
	case units+b.held+unpooled != onHand:
		b.broken = fmt.Sprintf("I2: %d in the pool + %d held + %d unpooled is not %d on hand", units, b.held, unpooled, onHand)
	case entries != onHand:
		b.broken = fmt.Sprintf("I3: the entries sum to %d, and %d are on hand", entries, onHand)
	}
	return b, nil
}

type pool struct {
	store *mysqlstore.Store
	lines int // of each cart
}

func openPool(ctx context.Context, j Job, alone bool) (session, error) {
	o := storeOptions(j.DSN, alone)
	if j.Hold > 0 {
		// The store offers a step before each COMMIT, to tests; the transaction and its locks are kept open there.
		o.Failpoint = func(step string) {
			if strings.HasSuffix(step, ".commit") && !strings.HasPrefix(step, "refill.") {
				time.Sleep(j.Hold) //nolint:forbidigo // the hold that was asked for, in a call that has no context
			}
		}
	}
	s, err := mysqlstore.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	return &pool{store: s, lines: max(j.Lines, 1)}, nil
}

func (p *pool) close() error { return p.store.Close() }

func (p *pool) reserve(ctx context.Context, c call) (reply, error) {
	req, err := cartOf(c, p.lines)
	if err != nil {
		return reply{}, err
	}
	res, err := p.store.Reserve(ctx, stamp(), c.id, req)
	if err != nil {
		return reply{}, err
	}
	return replyOf(res), nil
}

// cartOf is a call as our stores take it, one unit a line: the first of the call's bucket, the others of those after it.
func cartOf(c call, size int) (reservation.Request, error) {
	lines := make([]reservation.Line, size)
	for n := range lines {
		lines[n] = reservation.Line{Item: int64(c.bucket+n) + 1, Group: group, Quantity: 1}
	}
	return reservation.NewRequest(shop, c.key, lines, ttl, reservation.Limits{})
}

// replyOf is what our stores answered to a reserve.
func replyOf(res reservation.Result) reply {
	r := reply{answer: granted, replayed: res.Replayed}
	if res.Record.Outcome != reservation.Granted {
		r.answer = rejected
	}
	return r
}

func (p *pool) claim(ctx context.Context, id reservation.ID) (reply, error) {
	res, err := p.store.Claim(ctx, stamp(), shop, id)
	switch {
	case err != nil:
		return reply{}, err
	case res.Record.State != reservation.Claimed:
		return reply{}, fmt.Errorf("the claim of %s left it %s", id, res.Record.State)
	}
	return reply{answer: claimed, replayed: res.Replayed}, nil
}

func (p *pool) release(ctx context.Context, id reservation.ID) (reply, error) {
	res, err := p.store.Release(ctx, stamp(), shop, id)
	switch {
	case err != nil:
		return reply{}, err
	case res.Record.State != reservation.Released:
		return reply{}, fmt.Errorf("the release of %s left it %s", id, res.Record.State)
	}
	return reply{answer: released, replayed: res.Replayed}, nil
}

// holds are reservations that claims take: numbers first to last, without last. Each is one unit. They are written in
// bulk, past the store, since making them is not what is measured.
type holds struct {
	seed        uint64
	first, last uint64
}

const holdBatch = 2000

// holdID is the id of hold n: time-ordered, as the ids of a router are, and the same in every process.
func holdID(seed, n uint64) reservation.ID {
	var id reservation.ID
	for i := range 6 {
		id[i] = byte(seed >> (40 - 8*i))
	}
	id[6], id[8] = 0x70, 0x80 // a UUIDv7
	for i := range 5 {
		id[11+i] = byte(n >> (32 - 8*i))
	}
	return id
}

// lay writes the holds, spread over the buckets, and takes their units from the stock.
func (h holds) lay(ctx context.Context, p place, pick *picker) error {
	db, err := openRows(p.DSN, 1)
	if err != nil {
		return err
	}
	defer db.Close()
	for first := h.first; first < h.last; first += holdBatch {
		if err := h.layBatch(ctx, db, first, min(first+holdBatch, h.last), pick); err != nil {
			return fmt.Errorf("write holds to be claimed: %w", err)
		}
	}
	return nil
}

func (h holds) layBatch(ctx context.Context, db *sql.DB, first, last uint64, pick *picker) error {
	list := make([]byte, 0, 48*(last-first))
	list = append(list, '[')
	for n := first; n < last; n++ {
		if n > first {
			list = append(list, ',')
		}
		id := holdID(h.seed, n)
		list = fmt.Appendf(list, `["%x",%d]`, id[:], pick.next()+1)
	}
	list = append(list, ']')
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for _, q := range []string{qHoldsLedger, qHoldsRecords, qHoldsLines} {
		if _, err := tx.ExecContext(ctx, q, string(list)); err != nil {
			return err
		}
	}
	return tx.Commit()
}
