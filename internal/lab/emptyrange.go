package lab

import (
	"context"
	"database/sql"
	"fmt"
)

// The empty bucket of steps 4 and 5 is behind all others, so that what follows it is the end of the index.
const (
	fullItem  = 1
	emptyItem = 2
	refilled  = 5
)

// emptyRange is step 4: what a look into an empty bucket locks.
func emptyRange(ctx context.Context, s *scratch, acc *account) error {
	if err := s.newUnits(ctx, 10, fullItem); err != nil {
		return err
	}
	a, b, end, err := newPair(ctx, s.db, acc)
	if err != nil {
		return err
	}
	defer end()
	repeatable, err := lookIntoEmpty(ctx, s, a, acc, sql.LevelRepeatableRead)
	if err != nil {
		return err
	}
	if err := a.rollback(); err != nil {
		return err
	}
	committed, err := lookIntoEmpty(ctx, s, b, acc, sql.LevelReadCommitted)
	if err != nil {
		return err
	}
	acc.expect("repeatable_read_locks", count(repeatable, ""), 1)
	acc.expect("repeatable_read_x_on_supremum", onSupremum(repeatable), 1)
	acc.expect("read_committed_locks", count(committed, ""), 0)
	return nil
}

func onSupremum(locks []lock) (n int64) {
	for _, l := range locks {
		if l.data == supremum && l.mode == "X" {
			n++
		}
	}
	return n
}

// lookIntoEmpty finds nothing, and gives the locks that it took for it.
func lookIntoEmpty(ctx context.Context, s *scratch, who *session, acc *account, level sql.IsolationLevel) ([]lock, error) {
	if err := who.begin(ctx, level); err != nil {
		return nil, err
	}
	if _, err := who.take(ctx, qTakeUnits, emptyItem, 1); err != nil {
		return nil, err
	}
	return s.showLocks(ctx, who, acc)
}

// waitingRefill is step 5: who pays for that lock.
func waitingRefill(ctx context.Context, s *scratch, acc *account) error {
	acc.say("A has found the bucket empty and has not ended its transaction; B refills:")
	if err := oneRefiller(ctx, s, acc, sql.LevelRepeatableRead, "repeatable_read", 1, errLockWait); err != nil {
		return err
	}
	acc.say("the same under READ COMMITTED:")
	if err := oneRefiller(ctx, s, acc, sql.LevelReadCommitted, "read_committed", 0, 0); err != nil {
		return err
	}
	acc.say("two refillers, each of whom looked first:")
	return twoRefillers(ctx, s, acc)
}

// oneRefiller: A has found the bucket empty and is still in its transaction; B refills.
func oneRefiller(ctx context.Context, s *scratch, acc *account, level sql.IsolationLevel, as string, waits, ends int64) error {
	if err := s.newUnits(ctx, 10, fullItem); err != nil {
		return err
	}
	a, b, end, err := newPair(ctx, s.short, acc)
	if err != nil {
		return err
	}
	defer end()
	if _, err := lookIntoEmpty(ctx, s, a, acc, level); err != nil {
		return err
	}
	if err := b.begin(ctx, level); err != nil {
		return err
	}
	p := b.start(ctx, qRefill, refilled, emptyItem)
	waited, err := s.awaitWait(ctx, b, a, p, acc)
	if err != nil {
		return err
	}
	rows, err := b.wait(p)
	errno, other := number(err)
	if other != nil {
		return fmt.Errorf("refill: %w", other)
	}
	acc.say("   B after %d ms: %s", p.took.Milliseconds(), ended(rows, err))
	acc.expect(as+"_waits", waited, waits)
	acc.expect(as+"_refill_errno", errno, ends)
	if ends == 0 {
		acc.expect(as+"_refilled", rows, refilled)
	}
	return nil
}

func ended(rows int64, err error) string {
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d rows", rows)
}

// twoRefillers have both found the bucket empty, and each stands in the other's way.
func twoRefillers(ctx context.Context, s *scratch, acc *account) error {
	if err := s.newUnits(ctx, 10, fullItem); err != nil {
		return err
	}
	a, b, end, err := newPair(ctx, s.db, acc)
	if err != nil {
		return err
	}
	defer end()
	for _, who := range []*session{a, b} {
		if _, err := lookIntoEmpty(ctx, s, who, acc, sql.LevelRepeatableRead); err != nil {
			return err
		}
	}
	p := a.start(ctx, qRefill, refilled, emptyItem)
	if _, err := s.awaitWait(ctx, a, b, p, acc); err != nil {
		return err
	}
	rowsB, errB := b.exec(ctx, qRefill, refilled, emptyItem)
	rowsA, errA := a.wait(p)
	acc.say("   A: %s", ended(rowsA, errA))
	acc.say("   B: %s", ended(rowsB, errB))
	var deadlocks, done int64
	for _, err := range []error{errA, errB} {
		n, other := number(err)
		switch {
		case other != nil:
			return fmt.Errorf("refill: %w", other)
		case n == errDeadlock:
			deadlocks++
		case n == 0:
			done++
		}
	}
	if err := s.showStatus(ctx, "LATEST DETECTED DEADLOCK", []string{"RECORD LOCKS", "WE ROLL BACK"}, acc); err != nil {
		return err
	}
	acc.expect("two_refillers_deadlocks", deadlocks, 1)
	acc.expect("two_refillers_done", done, 1)
	return nil
}
