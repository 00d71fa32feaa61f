package lab

import (
	"context"
	"database/sql"
)

// Step 7 has 5 units; A wants 3 and B wants 4.
const (
	raceStock, wantA, wantB = 5, 3, 4
)

// lostUpdate is step 7: two who look first and write what they have worked out, then the same with the guard in the
// statement.
func lostUpdate(ctx context.Context, s *scratch, acc *account) error {
	a, b, end, err := newPair(ctx, s.db, acc)
	if err != nil {
		return err
	}
	defer end()
	acc.say("%d units; A wants %d, B wants %d; both look, then write what they have worked out:", raceStock, wantA, wantB)
	if err := checkThenAct(ctx, s, a, b, acc); err != nil {
		return err
	}
	acc.say("the guard in the statement:")
	return guarded(ctx, s, a, b, acc)
}

func newRace(ctx context.Context, s *scratch, a, b *session) error {
	if err := s.setUp(ctx, qDropSingle, qCreateSingle); err != nil {
		return err
	}
	if err := s.fill(ctx, qFillSingle, raceStock); err != nil {
		return err
	}
	for _, who := range []*session{a, b} {
		if err := who.begin(ctx, sql.LevelReadCommitted); err != nil {
			return err
		}
	}
	return nil
}

func checkThenAct(ctx context.Context, s *scratch, a, b *session, acc *account) error {
	if err := newRace(ctx, s, a, b); err != nil {
		return err
	}
	buyers := []struct {
		*session
		want, seen int64
	}{{session: a, want: wantA}, {session: b, want: wantB}}
	var err error
	for i := range buyers {
		if buyers[i].seen, err = buyers[i].read(ctx, qAvailable); err != nil {
			return err
		}
	}
	var sold int64
	for _, who := range buyers {
		if who.seen < who.want {
			continue // it would have said sold out
		}
		if _, err := who.exec(ctx, qSetTo, who.seen-who.want); err != nil {
			return err
		}
		if err := who.commit(); err != nil {
			return err
		}
		sold += who.want
	}
	left, err := s.number(ctx, qAvailable)
	if err != nil {
		return err
	}
	acc.say("   of %d units %d are sold, and the row says %d left", raceStock, sold, left)
	acc.expect("check_then_act_sold", sold, wantA+wantB)
	acc.expect("check_then_act_left", left, raceStock-wantB)
	return nil
}

func guarded(ctx context.Context, s *scratch, a, b *session, acc *account) error {
	if err := newRace(ctx, s, a, b); err != nil {
		return err
	}
	var sold int64
	for _, who := range []struct {
		*session
		want int64
	}{{a, wantA}, {b, wantB}} {
		rows, err := who.exec(ctx, qTakeIf, who.want, who.want)
		if err != nil {
			return err
		}
		acc.say("   %s changes %d rows", who.name, rows)
		if err := who.commit(); err != nil {
			return err
		}
		sold += rows * who.want
	}
	left, err := s.number(ctx, qAvailable)
	if err != nil {
		return err
	}
	acc.expect("guarded_sold", sold, wantA)
	acc.expect("guarded_left", left, raceStock-wantA)
	return nil
}
