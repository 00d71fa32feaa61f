package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	twinholdv1 "github.com/twinhold/twinhold/api/twinhold/v1"
	"github.com/twinhold/twinhold/api/twinhold/v1/twinholdv1connect"
	"github.com/twinhold/twinhold/killswitch"
	"github.com/twinhold/twinhold/reservation"
)

// Bounds of the admin calls. What changes something goes on when its caller hangs up, so that it is not left half-way;
// a flip does not, since it may wait for an hour, and can be taken up again.
const (
	lookLimit   = 30 * time.Second
	changeLimit = time.Minute
	drillLimit  = 5 * time.Minute

	maxReason = 500
	maxTicket = 200
)

// control is the AdminService.
type control struct {
	pods func() []Pod
	log  *slog.Logger
}

var _ twinholdv1connect.AdminServiceHandler = (*control)(nil)

func (s *Server) adminService() (string, http.Handler) {
	path, h := twinholdv1connect.NewAdminServiceHandler(&control{pods: s.podsNow, log: s.opt.Logger},
		connect.WithCodec(strictJSON{"json"}), connect.WithCodec(strictJSON{"json; charset=utf-8"}),
		connect.WithReadMaxBytes(MaxBody),
		connect.WithRecover(s.recovered),
	)
	return path, s.authenticated(h)
}

// Status shows one pod, or all.
func (c *control) Status(ctx context.Context, req *connect.Request[twinholdv1.StatusRequest]) (*connect.Response[twinholdv1.StatusResponse], error) {
	t, err := allowed(ctx, "look", Viewer, Oncall, Operator)
	if err != nil {
		return nil, err
	}
	controls, err := c.some(req.Msg.GetPod(), t)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	ans := &twinholdv1.StatusResponse{Pods: make([]*twinholdv1.PodStatus, len(controls))}
	each(controls, func(i int, p podControl) { ans.Pods[i] = statusOf(p.control.Status(ctx, false)) })
	return connect.NewResponse(ans), nil
}

// Flip plans a flip, or carries it out.
func (c *control) Flip(ctx context.Context, req *connect.Request[twinholdv1.FlipRequest]) (*connect.Response[twinholdv1.FlipResponse], error) {
	m := req.Msg
	order, err := orderOf(m)
	if err != nil {
		return nil, err
	}
	if order.To, err = stageOf(m.GetTo()); err != nil {
		return nil, err
	}
	if d := m.GetWait(); d != nil {
		if order.Wait = d.AsDuration(); !d.IsValid() || order.Wait <= 0 {
			return nil, invalid("wait", "is no positive duration: leave it out for the longest ttl")
		}
	}
	if !m.GetExecute() {
		p, _, err := c.one(ctx, m.GetPod(), "look", Viewer, Oncall, Operator)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, lookLimit)
		defer cancel()
		plan, err := p.control.Plan(ctx, order)
		if err != nil {
			return nil, c.fail(ctx, "plan", p.id, err)
		}
		return connect.NewResponse(planAnswer(plan)), nil
	}
	p, t, err := c.one(ctx, m.GetPod(), "flip", Operator)
	if err != nil {
		return nil, err
	}
	c.log.InfoContext(ctx, "a flip was asked for", "pod", p.id, "to", order.To.String(), "by", t.Name, "reason", order.Reason)
	res, err := p.control.Execute(ctx, order)
	if err != nil {
		return nil, c.fail(ctx, "flip", p.id, err)
	}
	return connect.NewResponse(flipAnswer(res, order.To)), nil
}

// Kill sends one pod back to Redis, or all.
func (c *control) Kill(ctx context.Context, req *connect.Request[twinholdv1.KillRequest]) (*connect.Response[twinholdv1.KillResponse], error) {
	m := req.Msg
	t, err := allowed(ctx, "kill", Oncall, Operator)
	if err != nil {
		return nil, err
	}
	if err := because(m.GetReason(), m.GetTicket(), true); err != nil {
		return nil, err
	}
	if (m.GetPod() == "") != m.GetAll() {
		return nil, invalid("pod", "name one pod, or say all")
	}
	controls, err := c.some(m.GetPod(), t)
	if err != nil {
		return nil, err
	}
	c.log.WarnContext(ctx, "a kill was asked for", "pod", m.GetPod(), "all", m.GetAll(), "by", t.Name, "reason", m.GetReason())
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeLimit)
	defer cancel()
	ans := &twinholdv1.KillResponse{Kills: make([]*twinholdv1.PodKill, len(controls))}
	errs := make([]error, len(controls))
	each(controls, func(i int, p podControl) {
		res, err := p.control.Kill(ctx, m.GetReason(), m.GetTicket())
		if err != nil {
			errs[i] = c.fail(ctx, "kill", p.id, err)
			ans.Kills[i] = &twinholdv1.PodKill{Pod: p.id, Error: messageOf(errs[i])}
			return
		}
		ans.Kills[i] = killAnswer(res)
	})
	if !m.GetAll() && errs[0] != nil {
		return nil, errs[0]
	}
	return killedAll(ans)
}

// killedAll never lets a kill that failed somewhere look like one that did not.
func killedAll(ans *twinholdv1.KillResponse) (*connect.Response[twinholdv1.KillResponse], error) {
	var failed []string
	for _, k := range ans.GetKills() {
		if k.GetError() != "" {
			failed = append(failed, k.GetPod()+": "+k.GetError())
		}
	}
	if len(failed) == 0 {
		return connect.NewResponse(ans), nil
	}
	err := connect.NewError(connect.CodeUnavailable, fmt.Errorf("%d of %d pods are not killed: %s", len(failed), len(ans.GetKills()), strings.Join(failed, "; ")))
	return nil, detailed(err, ans)
}

// Rearm undoes a kill, or says whether it would.
func (c *control) Rearm(ctx context.Context, req *connect.Request[twinholdv1.RearmRequest]) (*connect.Response[twinholdv1.RearmResponse], error) {
	m := req.Msg
	order, err := orderOf(m)
	if err != nil {
		return nil, err
	}
	what, roles := "look", []Role{Viewer, Oncall, Operator}
	if m.GetExecute() {
		what, roles = "rearm", []Role{Operator}
	}
	p, t, err := c.one(ctx, m.GetPod(), what, roles...)
	if err != nil {
		return nil, err
	}
	if m.GetExecute() {
		c.log.InfoContext(ctx, "a rearm was asked for", "pod", p.id, "by", t.Name, "reason", order.Reason)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeLimit)
	defer cancel()
	res, err := p.control.Rearm(ctx, order, m.GetExecute())
	if err != nil {
		return nil, c.fail(ctx, "rearm", p.id, err)
	}
	return connect.NewResponse(rearmAnswer(res)), nil
}

// Drill kills and rearms a pod.
func (c *control) Drill(ctx context.Context, req *connect.Request[twinholdv1.DrillRequest]) (*connect.Response[twinholdv1.DrillResponse], error) {
	m := req.Msg
	if err := because(m.GetReason(), m.GetTicket(), false); err != nil {
		return nil, err
	}
	p, t, err := c.one(ctx, m.GetPod(), "drill", Operator)
	if err != nil {
		return nil, err
	}
	c.log.WarnContext(ctx, "a drill was asked for", "pod", p.id, "by", t.Name, "reason", m.GetReason())
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drillLimit)
	defer cancel()
	res, err := p.control.Drill(ctx, m.GetReason(), m.GetTicket())
	if err != nil {
		return nil, c.fail(ctx, "drill", p.id, err)
	}
	return connect.NewResponse(drillAnswer(res)), nil
}

// Freeze sets a brake.
func (c *control) Freeze(ctx context.Context, req *connect.Request[twinholdv1.FreezeRequest]) (*connect.Response[twinholdv1.FreezeResponse], error) {
	brake, err := c.brake(ctx, req.Msg, true, Oncall, Operator)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&twinholdv1.FreezeResponse{Brake: brake}), nil
}

// Unfreeze lifts it.
func (c *control) Unfreeze(ctx context.Context, req *connect.Request[twinholdv1.UnfreezeRequest]) (*connect.Response[twinholdv1.UnfreezeResponse], error) {
	brake, err := c.brake(ctx, req.Msg, false, Operator)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&twinholdv1.UnfreezeResponse{Brake: brake}), nil
}

func (c *control) brake(ctx context.Context, m interface {
	GetPod() string
	GetBucket() *twinholdv1.Bucket
	GetReason() string
	GetTicket() string
}, on bool, roles ...Role,
) (*twinholdv1.Brake, error) {
	what := "unfreeze"
	if on {
		what = "freeze"
	}
	p, t, err := c.one(ctx, m.GetPod(), what, roles...)
	if err != nil {
		return nil, err
	}
	if err := because(m.GetReason(), m.GetTicket(), on); err != nil {
		return nil, err
	}
	var b reservation.Bucket
	if m.GetBucket() != nil {
		if b = bucketOf(m.GetBucket()); b.Validate() != nil {
			return nil, connect.NewError(connect.CodeInvalidArgument, b.Validate())
		}
	}
	c.log.WarnContext(ctx, what+" was asked for", "pod", p.id, "by", t.Name, "reason", m.GetReason())
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeLimit)
	defer cancel()
	res, err := p.control.Freeze(ctx, b, on, m.GetReason(), m.GetTicket())
	if err != nil {
		return nil, c.fail(ctx, what, p.id, err)
	}
	return brakeAnswer(res), nil
}

// Audit shows the records of one pod, or of all.
func (c *control) Audit(ctx context.Context, req *connect.Request[twinholdv1.AuditRequest]) (*connect.Response[twinholdv1.AuditResponse], error) {
	t, err := allowed(ctx, "look", Viewer, Oncall, Operator)
	if err != nil {
		return nil, err
	}
	controls, err := c.some(req.Msg.GetPod(), t)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	var (
		mu   sync.Mutex
		all  []reservation.AuditRecord
		errs []error
	)
	each(controls, func(_ int, p podControl) {
		records, err := p.control.Audit(ctx)
		mu.Lock()
		defer mu.Unlock()
		all = append(all, records...)
		if err != nil {
			errs = append(errs, c.fail(ctx, "audit", p.id, err))
		}
	})
	if len(errs) > 0 && len(all) == 0 {
		return nil, errs[0]
	}
	slices.SortStableFunc(all, func(a, b reservation.AuditRecord) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Pod, b.Pod))
	})
	ans := &twinholdv1.AuditResponse{}
	for _, r := range all {
		ans.Records = append(ans.Records, auditAnswer(r))
	}
	for _, err := range errs {
		ans.Notes = append(ans.Notes, messageOf(err))
	}
	return connect.NewResponse(ans), nil
}

// podControl is the kill switch of one pod, made for the bearer of a token.
type podControl struct {
	id      string
	control Control
}

// one finds the pod that a call names, for a bearer who may do what it asks.
func (c *control) one(ctx context.Context, pod, what string, roles ...Role) (podControl, Token, error) {
	t, err := allowed(ctx, what, roles...)
	if err != nil {
		return podControl{}, t, err
	}
	if pod == "" {
		return podControl{}, t, invalid("pod", "is empty: name one")
	}
	found, err := c.some(pod, t)
	if err != nil {
		return podControl{}, t, err
	}
	return found[0], t, nil
}

// some finds one pod, or gives all of them.
func (c *control) some(pod string, t Token) ([]podControl, error) {
	var found []podControl
	var known []string
	for _, p := range c.pods() {
		known = append(known, p.ID)
		if pod != "" && p.ID != pod {
			continue
		}
		if p.Control == nil {
			return nil, connect.NewError(connect.CodeUnimplemented, fmt.Errorf("this router does not move pod %s", p.ID))
		}
		k, err := p.Control(t.Name)
		if err != nil {
			return nil, c.fail(context.Background(), "open", p.ID, err)
		}
		found = append(found, podControl{p.ID, k})
	}
	if len(found) == 0 {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("there is no pod %q: this router has %s", clip(pod), strings.Join(known, ", ")))
	}
	return found, nil
}

// each asks all pods at once.
func each(pods []podControl, ask func(i int, p podControl)) {
	var asked sync.WaitGroup
	for i, p := range pods {
		asked.Go(func() { ask(i, p) })
	}
	asked.Wait()
}

// fail turns an error of a kill switch into the caller's. Its callers run the pods, and are told causes.
func (c *control) fail(ctx context.Context, op, pod string, err error) error {
	var (
		refused    *killswitch.RefusedError
		noRefuge   *killswitch.NoRefugeError
		incomplete *killswitch.IncompleteError
	)
	switch {
	case errors.As(err, &refused):
		return refusal(refused)
	case errors.As(err, &noRefuge):
		return connect.NewError(connect.CodeUnavailable, err)
	case errors.As(err, &incomplete):
		return connect.NewError(connect.CodeUnavailable, fmt.Errorf("%w: send the same again, it goes on from there", err))
	case errors.Is(err, reservation.ErrLatched), errors.Is(err, reservation.ErrNotLatched):
		return connect.NewError(connect.CodeFailedPrecondition, err)
	case errors.Is(err, reservation.ErrRestoring):
		return connect.NewError(connect.CodeUnavailable, err)
	}
	code := codeOf(err)
	c.log.ErrorContext(ctx, "an admin call failed", "op", op, "pod", pod, "err", err)
	if code == connect.CodeInternal {
		return connect.NewError(code, fmt.Errorf("%s of pod %s failed: the router's log has its cause", op, pod))
	}
	return connect.NewError(code, fmt.Errorf("%s of pod %s: %w", op, pod, err))
}

func refusal(r *killswitch.RefusedError) error {
	text := r.Error()
	for _, g := range r.Gates {
		text += fmt.Sprintf("; gate %s: %s (%s)", g.Name, g.Verdict, cmp.Or(g.Reason, g.Figure))
	}
	if r.Hint != "" {
		text += ": " + r.Hint
	}
	return detailed(connect.NewError(connect.CodeFailedPrecondition, errors.New(text)), &twinholdv1.Refusal{
		Pod: r.Pod, Action: r.Action, Reason: r.Reason, Hint: r.Hint, Gates: gatesAnswer(r.Gates),
	})
}
