package killswitch

import (
	"context"
	"errors"
	"fmt"

	"github.com/twinhold/twinhold/reservation"
)

// leave is the way out of complete: MySQL's fence first, so that the routers act as cut from Redis; then Redis is
// rebuilt, which ends with its fence. If it was begun before, it goes on where it was.
func (f *flip) leave(ctx context.Context, at place) error {
	if f.c.opt.Reseed == nil {
		return &RefusedError{
			Pod: f.c.opt.Pod, Action: reservation.ActionFlip, Reason: "this process cannot rebuild Redis",
			Hint: "run it as a command: twinhold flip " + f.c.opt.Pod + " --to cutover --execute",
		}
	}
	fs := &facts{c: f.c, v: at.view}
	s := f.c.step(ctx, fs, at, reservation.Complete, reservation.Cutover, f.o)
	if shut := (Plan{Steps: []Step{s}}).Shut(); len(shut) > 0 {
		return f.shut(at, reservation.Cutover, shut)
	}
	f.c.opt.Failpoint("gate_passed")
	to, a := at.mysql.Stamp, f.record(s, fs)
	if !at.leaving || at.redis.Epoch == 0 {
		// Above what Redis has seen too: nothing that is left there can be taken for newer.
		to = reservation.Stamp{Epoch: max(at.mysql.Epoch, at.redis.Epoch) + 1, Stage: reservation.Cutover}
		if err := f.leaveMySQL(ctx, to, &a); err != nil {
			return err
		}
	}
	f.expect = &to
	f.o.Progress("complete -> cutover: Redis is wiped and rebuilt from MySQL")
	f.c.opt.Failpoint("before_reseed")
	rebuild, cancel := context.WithTimeout(ctx, reseedWait)
	defer cancel()
	detail, err := f.c.opt.Reseed(rebuild, to, a)
	if err != nil {
		return &IncompleteError{
			Pod: f.c.opt.Pod, Did: fmt.Sprintf("MySQL's fence is at %s, and the routers go on with MySQL alone", stampText(to)),
			Left: "Redis is not rebuilt: run the same command again", Cause: err,
		}
	}
	f.c.opt.Failpoint("reseeded")
	f.c.log.Warn("flipped", "from", s.From, "to", s.To, "epoch", to.Epoch, "by", f.c.opt.By)
	if detail != "" {
		f.note("%s", detail)
	}
	got := f.c.awaitAcks(ctx, to.Epoch, ackPolls*f.c.opt.Poll)
	f.res.Stage, f.res.Epoch = to.Stage.String(), to.Epoch
	f.res.Moves = append(f.res.Moves, Moved{
		Step: s, Epoch: to.Epoch, Replicas: f.c.replicas(ctx), Acks: got.acks, Routers: got.routers, Laggards: got.laggards,
	})
	return nil
}

func (f *flip) leaveMySQL(ctx context.Context, to reservation.Stamp, a *reservation.AuditRecord) error {
	wait, cancel := context.WithTimeout(ctx, raiseWait)
	defer cancel()
	f.c.opt.Failpoint("before_left")
	fence, err := f.c.opt.MySQL.Raise(wait, to, a)
	if err != nil {
		return fmt.Errorf("move pod %s to cutover in MySQL: %w", f.c.opt.Pod, err)
	}
	if fence.Stamp != to {
		return errors.New("somebody else has moved the pod meanwhile: look at twinhold audit " + f.c.opt.Pod)
	}
	f.c.opt.Failpoint("left")
	return nil
}
