package router

import (
	"context"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Sweep ends every reservation that is due now, in batches, in the store that decides, and tells the other one. It
// returns how many expired.
func (p *Pod) Sweep(ctx context.Context) (int, error) {
	expired := 0
	for {
		began := time.Now()
		st := p.Stamp()
		store := reservation.Store(p.opt.Redis)
		if st.Stage.Route(reservation.OpExpire).Decides == reservation.MySQL {
			store = p.opt.MySQL
		}
		res, err := store.Sweep(ctx, st, p.tune().SweepBatch)
		p.Expired(st, res.Expired, began)
		expired += len(res.Expired)
		if stale(err) {
			return expired, p.load(ctx)
		}
		if err != nil || !res.More {
			return expired, p.unrouted(err)
		}
	}
}

// Expired accounts for holds that a store has expired by itself, not before began, and tells the other one.
func (p *Pod) Expired(st reservation.Stamp, recs []reservation.Record, began time.Time) {
	for i := range recs {
		p.expired(st, recs[i], began)
	}
}

func (p *Pod) expired(st reservation.Stamp, rec reservation.Record, began time.Time) {
	if !st.Stage.DualWrite() {
		return
	}
	span := p.engine.BeginAt(reservation.OpExpire, began)
	out := outcome(st, rec)
	out.Decision, out.Moved = reservation.ExpiredOK, true
	p.account(span, answer{out: out, follow: &reservation.MirrorOp{Op: reservation.OpExpire, Decision: reservation.ExpiredOK, Record: rec}})
}
