package replay

import (
	"context"
	"fmt"
	"time"

	"github.com/twinhold/twinhold/diff"
	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/reservation"
)

// books is everything that the stores themselves hold of a pod at one moment of rest.
type books struct {
	redis, mysql reservation.Snapshot
	tally        diff.Tally
}

func readBooks(ctx context.Context, pod *podset.Pod) (books, error) {
	var b books
	var err error
	if b.redis, b.mysql, err = pod.Inspect(ctx); err != nil {
		return b, err
	}
	if b.tally, err = pod.Tallies.Read(ctx, time.Unix(0, 0).UTC()); err != nil {
		return b, err
	}
	return b, nil
}

// steps counts what the stores' own records say has happened.
func (b books) steps() map[string]int64 {
	n := map[string]int64{}
	for i := range b.redis.Records {
		r := &b.redis.Records[i]
		n[r.Outcome.String()]++
		if !r.ReleasedAt.IsZero() {
			n[reservation.ReleasedOK.String()]++
		}
		if !r.ExpiredAt.IsZero() {
			n[reservation.ExpiredOK.String()]++
		}
		if r.State == reservation.Refused {
			n[reservation.RefundRequired.String()]++
		}
	}
	claimed := map[reservation.ID]bool{}
	for _, e := range b.mysql.Entries {
		switch e.Kind {
		case reservation.EntryClaim:
			claimed[e.Reservation] = true
		case reservation.EntryAdjust:
			n[reservation.Adjusted.String()]++
		case reservation.EntryStock:
		}
	}
	n[reservation.ClaimedOK.String()] = int64(len(claimed))
	return n
}

// states counts the granted reservations by the state that they are in.
func (b books) states() map[string]int64 {
	n := map[string]int64{}
	for i := range b.redis.Records {
		if r := &b.redis.Records[i]; r.Outcome == reservation.Granted {
			n[r.State.String()]++
		}
	}
	return n
}

// accounted checks I11: every operation ended as compared or as a gap, and the first ones of each kind are as many as
// the stores' own records say. Operations whose outcome the truth did not tell may have happened all the same, so they
// widen the equation. It gives what is wrong.
func accounted(before, after books) []string {
	var wrong []string
	b, a := before.tally, after.tally
	operations, compared, gaps := a.Operations-b.Operations, a.Compared-b.Compared, a.GapTotal()-b.GapTotal()
	if operations == 0 {
		return []string{"no operation was tallied"}
	}
	if operations != compared+gaps {
		wrong = append(wrong, fmt.Sprintf("%d operations, but %d compared and %d gaps", operations, compared, gaps))
	}
	undecided := int64(0)
	for _, reason := range []diff.GapReason{diff.GapUnknown, diff.GapUnavailable} {
		undecided += a.Gaps[string(reason)] - b.Gaps[string(reason)]
	}
	was, is := before.steps(), after.steps()
	for _, d := range []reservation.Decision{
		reservation.Granted, reservation.RejectedShort, reservation.ReleasedOK, reservation.ExpiredOK,
		reservation.ClaimedOK, reservation.RefundRequired, reservation.Adjusted,
	} {
		name := d.String()
		stored, told := is[name]-was[name], a.First[name]-b.First[name]
		if stored < told || stored > told+undecided {
			wrong = append(wrong, fmt.Sprintf("%s: the stores hold %d, the tallies say %d (and %d operations without an answer)", name, stored, told, undecided))
		}
	}
	return wrong
}
