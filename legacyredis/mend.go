package legacyredis

import (
	"context"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/twinhold/twinhold/reservation"
)

// errNoBucket: a hold cannot be counted in a bucket that has no figures.
var errNoBucket = &reservation.InvalidError{Field: "lines", Reason: "name a bucket that Redis has no figures of: stock it, or mend the other store"}

// Mend gives a record the lines, key, hash and expiry of another, whatever its state; its units move with its lines, also
// those that are not there (forced). Nothing is written unless the record is still as shown: then done is false.
func (s *Store) Mend(ctx context.Context, st reservation.Stamp, shown, to reservation.Record, a reservation.AuditRecord) (forced int64, done bool, err error) {
	body, err := s.auditBody(a, reservation.ActionMend)
	if err != nil {
		return 0, false, err
	}
	see := []any{
		"shop", strconv.FormatInt(shown.Shop, 10), "key", shown.Key, "hash", hex.EncodeToString(shown.Hash[:]), "lines", packLines(shown.Lines),
		"state", shown.State.String(), "epoch", strconv.FormatUint(shown.Epoch, 10), "expires_at", stamp(shown.ExpiresAt), "purge_at", stamp(shown.PurgeAt),
	}
	args := append([]any{shown.ID.String(), token(), body, len(see) / 2}, see...)
	args = append(args, "key", to.Key, "hash", hex.EncodeToString(to.Hash[:]), "lines", packLines(to.Lines),
		"expires_at", stamp(to.ExpiresAt), "purge_at", stamp(to.PurgeAt))
	c := call{script: s.scripts.mend, op: reservation.OpReserve, stamp: st, args: args}
	r, err := s.run(ctx, c)
	if err != nil {
		return 0, false, err
	}
	switch r.status {
	case "MENDED":
		forced, err = r.number(0)
		return forced, err == nil, err
	case "CHANGED":
		return 0, false, nil
	case "TAKEN":
		return 0, false, &reservation.InvalidError{Field: "key", Reason: fmt.Sprintf("is that of %s in Redis: mend that one first", r.text(0))}
	case "UNKNOWN":
		return 0, false, errNoBucket
	default:
		return 0, false, strange(c, r)
	}
}

// MendBucket gives a bucket the ledger's figures, and held as what its live reservations sum to. Nothing is written unless
// its counters are still as shown: then done is false.
func (s *Store) MendBucket(ctx context.Context, st reservation.Stamp, shown reservation.Availability, fig reservation.Figures, held int64, a reservation.AuditRecord) (done bool, err error) {
	body, err := s.auditBody(a, reservation.ActionMend)
	if err != nil {
		return false, err
	}
	args := []any{shown.Bucket.String()}
	for _, n := range []int64{shown.Available, shown.Held, shown.OnHand, shown.Version, held, fig.OnHand, fig.Version} {
		args = append(args, strconv.FormatInt(n, 10))
	}
	c := call{script: s.scripts.mendBucket, op: reservation.OpAdjust, stamp: st, args: append(args, body)}
	r, err := s.run(ctx, c)
	switch {
	case err != nil:
		return false, err
	case r.status == "MENDED":
		return true, nil
	case r.status == "CHANGED":
		return false, nil
	default:
		return false, strange(c, r)
	}
}
