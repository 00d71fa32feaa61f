package podset

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twinhold/twinhold/config"
	"github.com/twinhold/twinhold/router"
)

// Take makes the set obey a configuration that was read again: its new pods are opened and started, what may change of
// the others changes. What waits for a restart or a flip is left as it is. On an error nothing was taken.
func (s *Set) Take(ctx context.Context, next *config.Config, changes []config.Change) error {
	var opened []*Pod
	for _, pc := range next.Pods {
		if s.opt.Only != "" && pc.ID != s.opt.Only || s.has(pc.ID) || !takenNow(changes, pc.ID) {
			continue
		}
		p, err := openPod(ctx, next, pc, s.opt)
		if err != nil {
			return errors.Join(fmt.Errorf("open pod %s: %w", pc.ID, err), closeAll(ctx, opened))
		}
		opened = append(opened, p)
	}
	pods := append(slices.Clone(s.Pods), opened...)
	routers := make([]*router.Pod, len(pods))
	for i, p := range pods {
		routers[i] = p.Router
	}
	if err := s.Router.SetPods(routers...); err != nil {
		return errors.Join(err, closeAll(ctx, opened))
	}
	for _, p := range s.Pods {
		p.cfg.Store(next)
		p.Router.Tune(tuningOf(next))
	}
	for _, p := range opened {
		p.Router.Start()
		if s.started {
			p.startReconcile(p.cfg.Load().Tuning.Reconcile)
		}
	}
	s.Pods = pods
	return nil
}

func (s *Set) has(id string) bool {
	return slices.ContainsFunc(s.Pods, func(p *Pod) bool { return p.Config.ID == id })
}

// takenNow tells whether a new pod can be taken while others serve: one whose shops or schema are still another's waits.
func takenNow(changes []config.Change, id string) bool {
	return !slices.ContainsFunc(changes, func(c config.Change) bool {
		return c.Path == "pods["+id+"]" && c.Takes != config.Now
	})
}

func closeAll(ctx context.Context, pods []*Pod) error {
	var errs []error
	for _, p := range pods {
		errs = append(errs, p.Close(ctx))
	}
	return errors.Join(errs...)
}
