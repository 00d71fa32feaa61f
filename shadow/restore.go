package shadow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/reservation"
)

// RestoreOptions are the parts of one restore.
type RestoreOptions struct {
	Pod   string
	Redis RestorableRedis
	MySQL RestoreSource
	// Known are stamps that routers have seen, as far as the caller knows.
	Known []reservation.Stamp
	// Latch is the reason of the pod's latch if the caller has seen one, under the highest epoch that it knows: it is
	// set again where Redis has lost it.
	Latch string
	// Wipe removes all of the pod's data from Redis first: a reseed.
	Wipe bool
	// To is the stamp to end with; zero: above every epoch seen, in the stage of the highest, shadow if in doubt.
	To reservation.Stamp
	// By, Reason and Ticket are for the audit.
	By, Reason, Ticket string
	// Page is how many records are read at a time. Default 500.
	Page       int
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Now        func() time.Time
}

func (o *RestoreOptions) defaults() {
	if o.Page == 0 {
		o.Page = 500
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Registerer == nil {
		o.Registerer = prometheus.NewRegistry()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}

func (o *RestoreOptions) validate() error {
	if o.Pod == "" || o.Redis == nil || o.MySQL == nil {
		return errors.New("shadow: RestoreOptions.Pod, Redis and MySQL are needed")
	}
	if o.Page < 1 || o.To.Epoch != 0 && !o.To.Stage.Valid() {
		return errors.New("shadow: RestoreOptions: Page at least 1, To with a valid stage")
	}
	return nil
}

// RestoreResult says what a restore did.
type RestoreResult struct {
	Before, After reservation.Fence
	// Records and Buckets were read from MySQL; Stored of the records changed Redis, Failed ones it would not take.
	Records, Stored, Failed, Buckets int
	// Adopted are the holds that Redis lacked, of so many Units; Forced units of them were not there.
	Adopted, Units, Forced int64
	// Unknown says in words what could not be known.
	Unknown []string
	Took    time.Duration
}

// heartbeatKeep is how far back a router's heartbeat counts as a stamp that somebody has seen.
const heartbeatKeep = 24 * time.Hour

// Restore rebuilds a pod's Redis from its MySQL, and gives it a fence above every epoch seen. Live holds of MySQL are
// adopted by force, ended ones and rejections get their state and their key; what stands higher in Redis stays, and so
// does what only Redis has. Nobody else is served by Redis until it has finished. A restore that fails leaves Redis as
// suspect as it was, and can be run again from the start. reservation.ErrHealthy: there was nothing to restore;
// reservation.ErrRestoring: somebody else is at it.
//
// It always needs a person's eye: where Redis decided, what it answered last and had not mirrored is lost.
func Restore(ctx context.Context, opt RestoreOptions) (RestoreResult, error) {
	opt.defaults()
	if err := opt.validate(); err != nil {
		return RestoreResult{}, err
	}
	m, err := newRestoreMetrics(opt.Registerer, opt.Pod)
	if err != nil {
		return RestoreResult{}, err
	}
	began := opt.Now()
	r := &restore{opt: opt}
	err = r.run(ctx)
	r.res.Took = opt.Now().Sub(began)
	m.observe(r.res, err)
	if !errors.Is(err, reservation.ErrHealthy) && !errors.Is(err, reservation.ErrRestoring) {
		r.alert(err)
	}
	if err != nil {
		return r.res, fmt.Errorf("restore Redis of pod %s: %w", opt.Pod, err)
	}
	return r.res, nil
}

type restore struct {
	opt RestoreOptions
	re  reservation.Restoring
	to  reservation.Stamp
	res RestoreResult
}

func (r *restore) run(ctx context.Context) (err error) {
	seen, err := r.look(ctx)
	if err != nil {
		return err
	}
	if r.done(seen.redis) {
		r.to, r.res.After = r.opt.To, seen.redis
		return nil
	}
	if _, err := seen.judge(r.opt.To, r.opt.Latch); err != nil {
		return err // before anything is removed
	}
	if r.re, err = r.opt.Redis.BeginRestore(ctx, seen.highest(), r.opt.Wipe); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = r.abandon(ctx, err)
		}
	}()
	r.res.Before = r.re.Seen()
	seen.redis = r.re.Seen()
	v, err := seen.judge(r.opt.To, r.opt.Latch)
	if err != nil {
		return err
	}
	r.to = v.to
	r.res.Unknown = append(r.res.Unknown, v.doubts...)
	// The figures go first, since they create the buckets, and again at the end, for what was claimed meanwhile.
	for _, part := range []func(context.Context) error{r.figures, r.records, r.figures} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	if r.res.After, err = r.re.Finish(ctx, r.to, v.latch, r.audit(seen.redis.Stamp)); err != nil {
		return err
	}
	r.raise(ctx)
	return nil
}

// done: an earlier run of this very restore has finished, and its caller did not hear of it.
func (r *restore) done(f reservation.Fence) bool {
	return r.opt.To.Epoch != 0 && f.Stamp == r.opt.To && f.IncarnationEpoch == r.opt.To.Epoch && !f.Suspect
}

// look gathers what there is to know before Redis is touched.
func (r *restore) look(ctx context.Context) (sightings, error) {
	s := sightings{known: r.opt.Known}
	var err error
	if s.mysql, err = r.opt.MySQL.ReadFence(ctx); err != nil {
		return s, fmt.Errorf("read MySQL's fence: %w", err)
	}
	if s.redis, err = r.opt.Redis.ReadFence(ctx); err != nil {
		return s, fmt.Errorf("read Redis's fence: %w", err)
	}
	beats, err := r.opt.Redis.Routers(ctx, heartbeatKeep)
	if err != nil {
		r.unknown("the routers' heartbeats could not be read (%v): what they have seen is known only as far as it was given", err)
	}
	for _, b := range beats {
		s.known = append(s.known, b.Stamp)
		if b.Queue > 0 {
			r.unknown("router %s last reported %d operations in its queue: MySQL may lack them", b.Router, b.Queue)
		}
	}
	return s, nil
}

func (r *restore) unknown(format string, args ...any) {
	r.res.Unknown = append(r.res.Unknown, fmt.Sprintf(format, args...))
}

// abandonTimeout is for giving up after the restore's own context has ended.
const abandonTimeout = 2 * time.Second

func (r *restore) abandon(ctx context.Context, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTimeout)
	defer cancel()
	return errors.Join(cause, r.re.Abandon(ctx))
}

func (r *restore) figures(ctx context.Context) error {
	r.res.Buckets = 0
	for after := (reservation.Bucket{}); ; {
		figs, err := r.opt.MySQL.Figures(ctx, after, r.opt.Page)
		if err != nil {
			return fmt.Errorf("read the ledger: %w", err)
		}
		if len(figs) == 0 {
			return nil
		}
		if err := r.re.ApplyFigures(ctx, figs); err != nil {
			return fmt.Errorf("give Redis the ledger's figures: %w", err)
		}
		r.res.Buckets += len(figs)
		after = figs[len(figs)-1].Bucket
	}
}

func (r *restore) records(ctx context.Context) error {
	for after := (reservation.ID{}); ; {
		recs, err := r.opt.MySQL.Walk(ctx, after, r.opt.Page)
		if err != nil {
			return fmt.Errorf("read MySQL's reservations: %w", err)
		}
		if len(recs) == 0 {
			return nil
		}
		after = recs[len(recs)-1].ID
		if err := r.give(ctx, recs); err != nil {
			return err
		}
	}
}

// give gives Redis a page of reservations, in one go.
func (r *restore) give(ctx context.Context, recs []reservation.Record) error {
	recs = slices.DeleteFunc(recs, func(rec reservation.Record) bool { return !rec.PurgeAt.After(r.opt.Now()) })
	ops := make([]reservation.MirrorOp, len(recs))
	for i := range recs {
		ops[i] = restoreOp(&recs[i])
	}
	js, errs := r.re.MirrorAll(ctx, r.to, ops)
	for i := range recs {
		if err := r.record(ctx, &recs[i], ops[i], js[i], errs[i]); err != nil {
			return err
		}
	}
	return nil
}

// record notes what became of one reservation. What Redis would not take does not stop the rest: an incomplete Redis
// that says so is better than none.
func (r *restore) record(ctx context.Context, rec *reservation.Record, op reservation.MirrorOp, j reservation.Judgement, err error) error {
	r.res.Records++
	if err == nil && op.Expect != nil && !j.Stored && j.State != 0 {
		// Redis knows it otherwise, and its word may be the newer: it is judged, not adopted.
		op.Adopt, op.Expect = false, nil
		j, err = r.re.Mirror(ctx, r.to, op)
	}
	switch {
	case err != nil && unusable(err):
		return fmt.Errorf("write reservation %s: %w", rec.ID, err)
	case err != nil:
		r.failed(rec, err.Error())
	case j.Stored:
		r.res.Stored++
		if rec.State.Live() && j.State.Live() {
			r.res.Adopted++
			r.res.Units += units(rec)
			r.res.Forced += j.Forced
		}
	case j.State == 0:
		r.failed(rec, j.Decision.String())
	}
	return nil
}

func (r *restore) failed(rec *reservation.Record, why string) {
	if r.res.Failed++; r.res.Failed <= maxExamples {
		r.unknown("Redis would not take reservation %s, %s: %s", rec.ID, rec.State, why)
	}
}

// restoreOp is the write of one record. A hold that Redis does not know at all was promised to somebody and is adopted,
// whoever has its key now; one that it knows otherwise is not, unless it is marked.
func restoreOp(rec *reservation.Record) reservation.MirrorOp {
	op := reservation.OpTo(*rec)
	if !rec.State.Live() {
		op.Changes = carried(rec)
		return op
	}
	var absent reservation.State
	if op.Adopt = true; !rec.Marked {
		op.Expect = &absent
	}
	return op
}

// carried are the changes of a claimed record that the figures hold already: version 0 says so. What is claimed after
// the first figures is in the last ones.
func carried(rec *reservation.Record) []reservation.Change {
	if rec.State != reservation.Claimed {
		return nil
	}
	out := make([]reservation.Change, len(rec.Lines))
	for i, l := range rec.Lines {
		out[i] = reservation.Change{Bucket: reservation.Bucket{Shop: rec.Shop, Item: l.Item, Group: l.Group}, Delta: -l.Quantity}
	}
	return out
}

func (r *restore) audit(before reservation.Stamp) reservation.AuditRecord {
	a := reservation.AuditRecord{
		Pod: r.opt.Pod, Action: reservation.ActionRestore, By: r.opt.By, Reason: r.opt.Reason, Ticket: r.opt.Ticket,
		Before: before, After: r.to,
		Detail: fmt.Sprintf("%d buckets, %d records, %d written, %d refused; adopted %d holds of %d units, %d of them not there",
			r.res.Buckets, r.res.Records, r.res.Stored, r.res.Failed, r.res.Adopted, r.res.Units, r.res.Forced),
	}
	if r.opt.Wipe {
		a.Action = reservation.ActionReseed
	}
	return a
}

// raise lets MySQL's fence follow at once. If that fails, whoever polls the fences does it.
func (r *restore) raise(ctx context.Context) {
	raiser, ok := r.opt.MySQL.(interface {
		Raise(ctx context.Context, st reservation.Stamp, a *reservation.AuditRecord) (reservation.Fence, error)
	})
	if !ok {
		return
	}
	if _, err := raiser.Raise(ctx, r.to, nil); err != nil {
		r.unknown("MySQL's fence was not raised yet: %v", err)
	}
}

// alert is the one line that a person is woken by.
func (r *restore) alert(err error) {
	if err == nil && r.to.Stage.Truth() == reservation.Redis && !r.opt.Wipe {
		r.unknown("what Redis answered last and had not mirrored is not in MySQL, and is lost if Redis has lost it")
	}
	attrs := []any{
		"pod", r.opt.Pod, "wiped", r.opt.Wipe, "before_epoch", r.res.Before.Epoch, "epoch", r.to.Epoch, "stage", r.to.Stage.String(),
		"records", r.res.Records, "stored", r.res.Stored, "failed", r.res.Failed, "buckets", r.res.Buckets,
		"adopted", r.res.Adopted, "units", r.res.Units, "forced", r.res.Forced, "unknown", r.res.Unknown, "took", r.res.Took,
	}
	if err != nil {
		r.opt.Logger.Error("Redis could not be restored from MySQL", append(attrs, "error", err)...)
		return
	}
	level := slog.LevelError
	if r.opt.Wipe { // a person asked for it
		level = slog.LevelWarn
	}
	r.opt.Logger.Log(context.Background(), level, "Redis was restored from MySQL: look at what was adopted and at what could not be known", attrs...)
}
