package lab

import (
	"context"
	"database/sql"
)

// singleRow is step 1: the counter as a row, and who waits for it.
func singleRow(ctx context.Context, s *scratch, acc *account) error {
	if err := s.setUp(ctx, qDropSingle, qCreateSingle); err != nil {
		return err
	}
	if err := s.fill(ctx, qFillSingle, 10); err != nil {
		return err
	}
	a, b, end, err := newPair(ctx, s.db, acc)
	if err != nil {
		return err
	}
	defer end()
	if err := a.begin(ctx, sql.LevelReadCommitted); err != nil {
		return err
	}
	if _, err := a.exec(ctx, qTakeOne); err != nil {
		return err
	}
	if err := b.begin(ctx, sql.LevelReadCommitted); err != nil {
		return err
	}
	p := b.start(ctx, qTakeOne)
	waits, err := s.awaitWait(ctx, b, a, p, acc)
	if err != nil {
		return err
	}
	locks, err := s.showLocks(ctx, a, acc)
	if err != nil {
		return err
	}
	if err := s.showStatus(ctx, "TRANSACTIONS", []string{"TRX HAS BEEN WAITING", "waiting"}, acc); err != nil {
		return err
	}
	if err := a.commit(); err != nil {
		return err
	}
	rows, err := b.wait(p)
	if err != nil {
		return err
	}
	acc.say("   now B changes %d row, after %d ms", rows, p.took.Milliseconds())
	if err := b.commit(); err != nil {
		return err
	}
	left, err := s.number(ctx, qAvailable)
	if err != nil {
		return err
	}
	acc.expect("waits", waits, 1)
	acc.expect("locks_of_a", count(locks, ""), 1)
	acc.expect("available", left, 8)
	return nil
}

// skipLocked is step 2: the same two, with stock as rows.
func skipLocked(ctx context.Context, s *scratch, acc *account) error {
	if err := s.newUnits(ctx, 10, 1); err != nil {
		return err
	}
	a, b, end, err := newPair(ctx, s.db, acc)
	if err != nil {
		return err
	}
	defer end()
	took := map[string][]unit{}
	for _, who := range []*session{a, b} {
		if err := who.begin(ctx, sql.LevelReadCommitted); err != nil {
			return err
		}
		if took[who.name], err = who.take(ctx, qTakeUnits, 1, 1); err != nil {
			return err
		}
	}
	var locks int64
	for _, who := range []*session{a, b} {
		of, err := s.showLocks(ctx, who, acc)
		if err != nil {
			return err
		}
		locks += count(of, "")
	}
	waits, err := s.waitsOf(ctx, b)
	if err != nil {
		return err
	}
	acc.say("   data_lock_waits: %d rows", len(waits))
	acc.expect("waits", int64(len(waits)), 0)
	acc.expect("locks", locks, 2)
	acc.expect("unit_of_a", first(took["A"]), 1)
	acc.expect("unit_of_b", first(took["B"]), 2)
	return nil
}

// first is the number of the first unit that came, 0 for none.
func first(units []unit) int64 {
	if len(units) == 0 {
		return 0
	}
	return units[0].id
}

// lockCounts is step 3: what one unit costs in locks, by the shape of its key.
func lockCounts(ctx context.Context, s *scratch, acc *account) error {
	const each, wanted = 100, 5
	if err := s.newUnits(ctx, each, 1, 2, 3); err != nil {
		return err
	}
	if err := s.setUp(ctx, qDropAuto, qCreateAuto); err != nil {
		return err
	}
	for item := range 3 {
		if err := s.fill(ctx, qFillAuto, each, item+1); err != nil {
			return err
		}
	}
	a, b, end, err := newPair(ctx, s.db, acc)
	if err != nil {
		return err
	}
	defer end()
	acc.say("the key is (shop, item, group, id):")
	units, composite, err := lockSome(ctx, s, a, acc, qTakeUnits, wanted)
	if err != nil {
		return err
	}
	acc.say("the key is an auto-increment id, and the bucket has an index of its own:")
	unitsAuto, auto, err := lockSome(ctx, s, b, acc, qTakeAuto, wanted)
	if err != nil {
		return err
	}
	acc.expect("units_composite_key", units, wanted)
	acc.expect("units_auto_increment", unitsAuto, wanted)
	acc.expect("locks_composite_key", count(composite, ""), wanted)
	acc.expect("locks_auto_increment", count(auto, ""), 2*wanted)
	acc.expect("of_those_on_secondary_index", count(auto, "bucket"), wanted)
	return nil
}

// lockSome takes units of item 2, and gives how many came and the locks that it took for them.
func lockSome(ctx context.Context, s *scratch, who *session, acc *account, query string, wanted int) (int64, []lock, error) {
	if err := who.begin(ctx, sql.LevelReadCommitted); err != nil {
		return 0, nil, err
	}
	units, err := who.take(ctx, query, 2, wanted)
	if err != nil {
		return 0, nil, err
	}
	locks, err := s.showLocks(ctx, who, acc)
	return int64(len(units)), locks, err
}
