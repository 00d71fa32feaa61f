package shadow_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/shadow"
)

// lay copies a hold of one unit many times, in both stores, with every figure that it moves.
func (p *pod) lay(holds int) {
	p.t.Helper()
	like := p.both(1)
	ctx := p.t.Context()
	fields, err := p.raw.HGetAll(ctx, p.key("res:"+like.ID.String())).Result()
	p.must(err)
	db, err := sql.Open("mysql", p.dsn)
	p.must(err)
	defer func() { _ = db.Close() }()
	for done := 0; done < holds; {
		ids := make([]string, min(5000, holds-done))
		for i := range ids {
			id, err := reservation.NewID()
			p.must(err)
			ids[i] = id.String()
		}
		p.layRedis(ctx, fields, ids)
		p.layMySQL(ctx, db, like.ID, ids)
		done += len(ids)
	}
	n := int64(holds)
	p.must(p.raw.IncrBy(ctx, p.key("held:"+bucket().String()), n).Err())
	p.must(p.raw.DecrBy(ctx, p.key("avail:"+bucket().String()), n).Err())
	_, err = db.ExecContext(ctx, "UPDATE inventory_ledger SET unpooled = unpooled - ?", n)
	p.must(err)
}

func (p *pod) layRedis(ctx context.Context, fields map[string]string, ids []string) {
	p.t.Helper()
	expires, err := strconv.ParseFloat(fields["expires_at"], 64)
	p.must(err)
	_, err = p.raw.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		created, exp := make([]redis.Z, len(ids)), make([]redis.Z, len(ids))
		for i, id := range ids {
			record := make([]any, 0, 2*len(fields))
			for k, v := range fields {
				if k == "key" {
					v = id
				}
				record = append(record, k, v)
			}
			pipe.HSet(ctx, p.key("res:"+id), record...)
			pipe.Set(ctx, p.key(fmt.Sprintf("key:%d:%s", shop, id)), id, 0)
			created[i], exp[i] = redis.Z{Member: id}, redis.Z{Score: expires, Member: id}
		}
		pipe.ZAdd(ctx, p.key("created"), created...)
		pipe.ZAdd(ctx, p.key("exp"), exp...)
		return nil
	})
	p.must(err)
}

func (p *pod) layMySQL(ctx context.Context, db *sql.DB, like reservation.ID, ids []string) {
	p.t.Helper()
	list, err := json.Marshal(ids)
	p.must(err)
	const from = " FROM JSON_TABLE(?, '$[*]' COLUMNS (u CHAR(36) PATH '$')) d "
	_, err = db.ExecContext(ctx, `INSERT INTO reservations (id, shop_id, idem_key, request_hash, cart, outcome, state, decided_by, epoch,
 created_at, expires_at, purge_at) SELECT UNHEX(REPLACE(d.u, '-', '')), t.shop_id, d.u, t.request_hash, t.cart, t.outcome, t.state,
 t.decided_by, t.epoch, t.created_at, t.expires_at, t.purge_at`+from+"JOIN reservations t ON t.id = ?", string(list), like[:])
	p.must(err)
	_, err = db.ExecContext(ctx, `INSERT INTO reserved_quantities (shop_id, inventory_item_id, inventory_group_id, reservation_id, quantity)
 SELECT t.shop_id, t.inventory_item_id, t.inventory_group_id, UNHEX(REPLACE(d.u, '-', '')), t.quantity`+from+
		"JOIN reserved_quantities t ON t.reservation_id = ?", string(list), like[:])
	p.must(err)
}

// sweepAway removes what was laid: more than is removed at the end of a test in the time that it has.
func (p *pod) sweepAway() {
	ctx := context.Background()
	for cursor := uint64(0); ; {
		keys, next, err := p.raw.Scan(ctx, cursor, p.key("*"), 10_000).Result()
		if err == nil && len(keys) > 0 {
			err = p.raw.Unlink(ctx, keys...).Err()
		}
		if err != nil {
			p.t.Error(err)
			return
		}
		if cursor = next; cursor == 0 {
			return
		}
	}
}

// resident is the memory of this process, in bytes; 0 where nobody tells.
func resident(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	return 0
}

// growth gives by how much the process grew at most while f ran.
func growth(t *testing.T, f func()) int64 {
	t.Helper()
	debug.FreeOSMemory()
	before := resident(t)
	most := before
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return max(most, resident(t)) - before
		case <-tick.C:
			most = max(most, resident(t))
		}
	}
}

// p99 reserves and releases at a fixed pace until the context ends, and gives the time that nine in ten times ten took.
func (p *pod) p99(ctx context.Context) time.Duration {
	p.t.Helper()
	var mu sync.Mutex
	var took []time.Duration
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				began := time.Now()
				r := p.reserve(p.redis, 1)
				d := time.Since(began)
				mu.Lock()
				took = append(took, d)
				mu.Unlock()
				p.mirror(p.mysql, reservation.OpReserve, r.Outcome, r)
				p.mirror(p.mysql, reservation.OpRelease, reservation.ReleasedOK, p.release(p.redis, r))
			}
		})
	}
	all.Wait()
	slices.Sort(took)
	return took[len(took)*99/100]
}

// A full round over many live holds takes memory by the page, not by the hold, and repairs what is wrong among them. With
// TWINHOLD_SOAK=1 over a million, under a hundred megabytes, while reserves take no more than 1.5 times as long.
func TestFullRoundOverManyHolds(t *testing.T) {
	holds, most := 20_000, int64(60<<20)
	if devtest.Soak() {
		holds, most = 1_000_000, 100<<20
	}
	p := newPod(t, reservation.Shadow, 4_000_000)
	t.Cleanup(p.sweepAway)
	began := time.Now()
	p.lay(holds)
	t.Logf("%d holds were laid in %s", holds, time.Since(began).Round(time.Second))
	lost := p.reserve(p.redis, 2)
	c := p.catchUp(func(o *shadow.CatchUpOptions) { o.Page = 0 })
	var round shadow.Round
	began = time.Now()
	grew := growth(t, func() { round = p.run(c) })
	t.Logf("a round over %d reservations took %s; the process grew by %.1f MB", round.Walked, time.Since(began).Round(time.Millisecond), float64(grew)/(1<<20))
	if round.Walked != holds+2 || round.Total() != 1 || round.Repaired["lost"] != 1 || len(round.Left) != 0 {
		t.Errorf("walked %d, repaired %v, left %v", round.Walked, round.Repaired, round.Left)
	}
	p.states("the lost one", lost.ID, held, held)
	if grew > most {
		t.Errorf("the process grew by %d MB, more than %d", grew>>20, most>>20)
	}
	if devtest.Soak() {
		p.pacedBeside(c)
	}
}

// pacedBeside compares reserves alone with reserves beside a round at the default rate.
func (p *pod) pacedBeside(c *shadow.CatchUp) {
	p.t.Helper()
	const rate, long = 20_000, 30 * time.Second
	alone, cancel := context.WithTimeout(p.t.Context(), long)
	defer cancel()
	before := p.p99(alone)
	beside, end := context.WithCancel(p.t.Context())
	began := time.Now()
	go func() {
		defer end()
		if _, err := c.Walk(p.t.Context(), p.fence(), shadow.Span{UpTo: shadow.Last(), Rate: rate}); err != nil {
			p.t.Error(err)
		}
	}()
	during := p.p99(beside)
	p.t.Logf("a round at %d records a second took %s; p99 of reserves %s alone, %s beside it (%.2f)", rate,
		time.Since(began).Round(time.Second), before, during, float64(during)/float64(before))
	if during > before*3/2 {
		p.t.Errorf("p99 of reserves: %s alone, %s beside the round", before, during)
	}
}

// What a round keeps is bounded, though everything differs.
func TestRoundOverManyDifferencesIsBounded(t *testing.T) {
	t.Parallel()
	p := newPod(t, reservation.Shadow, 100_000)
	const holds = 3000
	p.lay(holds)
	p.exec("DELETE FROM reservations WHERE id <> ?", p.first())
	p.exec("DELETE FROM reserved_quantities WHERE reservation_id NOT IN (SELECT id FROM reservations)")
	p.exec("UPDATE inventory_ledger SET unpooled = unpooled + ?", holds)
	told := 0
	round, err := p.catchUp(func(o *shadow.CatchUpOptions) { o.Page = 500 }).RunTold(t.Context(), p.fence(), func(part shadow.Part, _ error) {
		told += len(part.Repairs)
	})
	if err != nil || round.Repaired["lost"] != holds || len(round.Repairs) != 1000 || told != holds || len(round.Left) != 0 {
		t.Errorf("repaired %v, %d named, %d told, left %v, %v", round.Repaired, len(round.Repairs), told, round.Left, err)
	}
	p.settled()
}

// first is the id of the first reservation, for SQL.
func (p *pod) first() []byte {
	p.t.Helper()
	ids, err := p.mysql.IDs(p.t.Context(), reservation.ID{}, 1)
	p.must(err)
	return ids[0][:]
}
