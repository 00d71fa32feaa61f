package lab

import (
	"context"
	"errors"
	"fmt"
)

// Steps is how many there are.
const Steps = 8

// step is one of the eight: what it shows, and what follows from it.
type step struct {
	name, means string
	run         func(context.Context, *scratch, *account) error
}

// steps are numbered from 1 in this order.
func steps() [Steps]step {
	return [Steps]step{
		{
			"a second transaction blocks on the single row",
			"a counter row serialises everybody who wants the item for as long as each holds it, its commit included; so stock is many rows.",
			singleRow,
		},
		{
			"SKIP LOCKED lets it pass by taking another unit",
			"two reservers of one item never wait for each other, since each locks units of its own.",
			skipLocked,
		},
		{
			"a composite primary key takes n locks for n units, a secondary index 2n",
			"the unit's key is the bucket and a number within it, so that one record is one lock.",
			lockCounts,
		},
		{
			"an empty bucket: REPEATABLE READ locks the supremum, READ COMMITTED nothing",
			"every transaction of ours is READ COMMITTED: to look into an empty pool must not lock the place where a refill goes.",
			emptyRange,
		},
		{
			"the refill that waits for that lock: 1205, and of two refillers one gets 1213",
			"under REPEATABLE READ the buyer who found nothing keeps the refill out, and the item looks sold out while its stock waits at the door.",
			waitingRefill,
		},
		{
			"UNION without parentheses: LIMIT and FOR UPDATE are not where one thinks",
			"each SELECT of a cart's UNION ALL stands in parentheses with its own LIMIT and FOR UPDATE SKIP LOCKED; only then is each row that comes back locked.",
			unionParentheses,
		},
		{
			"check, then act: the lost update",
			"the check and the change are one statement under one lock (the guard is in the WHERE), or the row is locked before it is read.",
			lostUpdate,
		},
		{
			"the claim found in the field, killed between its two steps",
			"a claim pins its hold in Redis first, and its entry in the ledger has the reservation's id in the primary key: a crash costs delay, never a figure.",
			fieldClaim,
		},
	}
}

// Lab shows the steps. Use it once.
type Lab struct{ opt Options }

// New checks the options. It connects to nothing.
func New(opt Options) (*Lab, error) {
	if err := opt.validate(); err != nil {
		return nil, err
	}
	return &Lab{opt: opt}, nil
}

// Run shows the steps that were asked for, in order, and removes what they made. The result has what was shown before
// an error.
func (l *Lab) Run(ctx context.Context) (res Result, err error) {
	s, err := openScratch(ctx, l.opt.DSN, l.opt.Redis)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	for i, st := range steps() {
		if !l.opt.wants(i + 1) {
			continue
		}
		a := &account{Step: Step{Number: i + 1, Name: st.name, Means: st.means, Facts: map[string]int64{}}}
		if err := st.run(ctx, s, a); err != nil {
			return res, fmt.Errorf("step %d (%s): %w", i+1, st.name, err)
		}
		a.OK = len(a.Problems) == 0
		res.Lab = append(res.Lab, a.Step)
		if l.opt.Each != nil {
			if err := l.opt.Each(a.Step); err != nil {
				return res, err
			}
		}
	}
	return res, nil
}
