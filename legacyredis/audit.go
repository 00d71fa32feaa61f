package legacyredis

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// auditPage is how many audit records are read at a time.
const auditPage = 500

// Audit gives every change of the pod's fence, latch and brakes that this Redis holds, oldest first.
func (s *Store) Audit(ctx context.Context) ([]reservation.AuditRecord, error) {
	var out []reservation.AuditRecord
	for {
		var page []string
		err := s.ask(ctx, "audit", func(ctx context.Context) error {
			var err error
			from := int64(len(out))
			page, err = s.client.LRange(ctx, s.keys.audit(), from, from+auditPage-1).Result()
			if err != nil {
				return s.wrongType(err, s.keys.audit())
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		for _, text := range page {
			a, err := s.decodeAudit(text)
			if err != nil {
				return nil, err
			}
			out = append(out, a)
		}
		if len(page) < auditPage {
			return out, nil
		}
	}
}

func (s *Store) decodeAudit(text string) (reservation.AuditRecord, error) {
	var e auditEntry
	err := json.Unmarshal([]byte(text), &e)
	at, terr := time.Parse(time.RFC3339Nano, e.At)
	if err != nil || terr != nil || e.Before == nil || e.After == nil {
		return reservation.AuditRecord{}, &reservation.CorruptError{
			Store: reservation.Redis, What: fmt.Sprintf("%s holds %q, which is no audit record", s.keys.audit(), text),
		}
	}
	return reservation.AuditRecord{
		At: at, Pod: e.Pod, Action: e.Action, By: e.By, Reason: e.Reason, Ticket: e.Ticket,
		Before: e.Before.stamp(), After: e.After.stamp(), Waived: e.Waived, Debt: e.Debt, Detail: e.Detail,
		Store: reservation.Redis.String(),
	}, nil
}
