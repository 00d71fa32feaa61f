package killswitch

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/twinhold/twinhold/reservation"
)

// FrozenFor gives, by bucket, the record of the freeze that stands: who froze it, why, and what was known. With one store
// out of reach it gives what the other has.
func (c *Control) FrozenFor(ctx context.Context) (map[reservation.Bucket]reservation.AuditRecord, error) {
	recs, err := c.Audit(ctx)
	out := map[reservation.Bucket]reservation.AuditRecord{}
	for _, r := range recs {
		b, ok := braked(r)
		switch {
		case !ok:
		case r.Action == reservation.ActionFreeze:
			out[b] = r
		default:
			delete(out, b)
		}
	}
	if BothFailed(err) {
		return nil, err
	}
	return out, nil
}

// braked gives the bucket of a brake's record.
func braked(r reservation.AuditRecord) (reservation.Bucket, bool) {
	if r.Action != reservation.ActionFreeze && r.Action != reservation.ActionUnfreeze {
		return reservation.Bucket{}, false
	}
	rest, ok := strings.CutPrefix(r.Detail, bucketDetail)
	name, _, _ := strings.Cut(rest, evidenceDetail)
	var b reservation.Bucket
	n, err := fmt.Sscanf(name, "%d:%d:%d", &b.Shop, &b.Item, &b.Group)
	return b, ok && err == nil && n == 3
}

// whyFrozen says of every frozen bucket who froze it and why, as far as the audit tells in time.
func (c *Control) whyFrozen(ctx context.Context) map[string]BucketFreeze {
	ctx, cancel := context.WithTimeout(ctx, statusWait)
	defer cancel()
	recs, err := c.FrozenFor(ctx)
	if err != nil {
		return nil
	}
	out := map[string]BucketFreeze{}
	for b, r := range recs {
		f := BucketFreeze{Bucket: b.String(), At: r.At, By: r.By, Reason: r.Reason, Ticket: r.Ticket}
		if _, text, ok := strings.Cut(r.Detail, evidenceDetail); ok && json.Valid([]byte(text)) {
			f.Evidence, f.Mend = json.RawMessage(text), c.mendOf(b, text)
		}
		out[f.Bucket] = f
	}
	return out
}

// mendOf is the command that shows the difference that evidence is of.
func (c *Control) mendOf(b reservation.Bucket, evidence string) string {
	var e struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal([]byte(evidence), &e); err == nil && e.ID != "" {
		return fmt.Sprintf("twinhold mend %s --id %s --from redis|mysql", c.opt.Pod, e.ID)
	}
	return fmt.Sprintf("twinhold mend %s --bucket %s --from mysql", c.opt.Pod, b)
}
