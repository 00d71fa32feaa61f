package lab

import (
	"context"
	"database/sql"
	"fmt"
)

// Step 6 takes 3 units of each of two buckets that have 20 each.
const (
	cartUnits  = 3
	unionUnits = 20
)

// unionParentheses is step 6: a cart's units in one statement, as one writes it first, and as it must be written.
func unionParentheses(ctx context.Context, s *scratch, acc *account) error {
	if err := s.newUnits(ctx, unionUnits, 1, 2); err != nil {
		return err
	}
	a, b, end, err := newPair(ctx, s.db, acc)
	if err != nil {
		return err
	}
	defer end()
	acc.say("a cart wants %d units of item 1 and %d of item 2, in one round trip; the clauses on each SELECT:", cartUnits, cartUnits)
	if err := bareUnion(ctx, a, acc); err != nil {
		return err
	}
	acc.say("the clauses at the end only; MySQL takes it:")
	if err := tailUnion(ctx, s, a, b, acc); err != nil {
		return err
	}
	acc.say("with ORDER BY, the whole is built before the LIMIT cuts it:")
	if err := orderedUnion(ctx, s, a, acc); err != nil {
		return err
	}
	acc.say("each SELECT in parentheses:")
	return rightUnion(ctx, s, a, acc)
}

// bareUnion: the clauses of the first SELECT are a syntax error, which is the good case.
func bareUnion(ctx context.Context, a *session, acc *account) error {
	if err := a.begin(ctx, sql.LevelReadCommitted); err != nil {
		return err
	}
	_, err := a.exec(ctx, qUnionBare)
	errno, other := number(err)
	if other != nil {
		return fmt.Errorf("the bare UNION: %w", other)
	}
	acc.say("   %s", ended(0, err))
	acc.expect("clauses_on_each_errno", errno, errSyntax)
	return nil
}

// tailUnion: left at the end only, the clauses are accepted. LIMIT is the whole's, FOR UPDATE the last SELECT's, and
// the units that come are not A's: B takes them too.
func tailUnion(ctx context.Context, s *scratch, a, b *session, acc *account) error {
	if err := a.begin(ctx, sql.LevelReadCommitted); err != nil {
		return err
	}
	came, err := a.take(ctx, qUnionTail)
	if err != nil {
		return err
	}
	locks, err := s.showLocks(ctx, a, acc)
	if err != nil {
		return err
	}
	if err := b.begin(ctx, sql.LevelReadCommitted); err != nil {
		return err
	}
	again, err := b.take(ctx, qTakeUnits, 1, cartUnits)
	if err != nil {
		return err
	}
	if err := b.rollback(); err != nil {
		return err
	}
	acc.say("   %d rows in place of %d, none of them locked, and %d went to both", len(came), 2*cartUnits, both(came, again))
	acc.expect("clauses_at_the_end_rows", int64(len(came)), cartUnits)
	acc.expect("clauses_at_the_end_locks", count(locks, ""), 0)
	acc.expect("units_taken_twice", both(came, again), cartUnits)
	return nil
}

// both is how many units are in both.
func both(one, two []unit) (n int64) {
	has := map[unit]bool{}
	for _, u := range one {
		has[u] = true
	}
	for _, u := range two {
		if has[u] {
			n++
		}
	}
	return n
}

// orderedUnion: with an ORDER BY the whole is built first, so the last SELECT locks its whole bucket.
func orderedUnion(ctx context.Context, s *scratch, a *session, acc *account) error {
	if err := a.begin(ctx, sql.LevelReadCommitted); err != nil {
		return err
	}
	if _, err := a.take(ctx, qUnionTailOrdered); err != nil {
		return err
	}
	locks, err := s.showLocks(ctx, a, acc)
	if err != nil {
		return err
	}
	acc.expect("ordered_locks", count(locks, ""), unionUnits)
	return nil
}

// rightUnion: each SELECT in parentheses.
func rightUnion(ctx context.Context, s *scratch, a *session, acc *account) error {
	if err := a.begin(ctx, sql.LevelReadCommitted); err != nil {
		return err
	}
	came, err := a.take(ctx, qUnionRight)
	if err != nil {
		return err
	}
	locks, err := s.showLocks(ctx, a, acc)
	if err != nil {
		return err
	}
	acc.expect("in_parentheses_rows", int64(len(came)), 2*cartUnits)
	acc.expect("in_parentheses_locks", count(locks, ""), 2*cartUnits)
	return nil
}
