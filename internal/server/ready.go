package server

import (
	"context"
	"net/http"
	"strings"
	"sync"

	"github.com/twinhold/twinhold/reservation"
)

// readiness is what /readyz answers.
type readiness struct {
	Ready    bool           `json:"ready"`
	Draining bool           `json:"draining"`
	Pods     []podReadiness `json:"pods"`
}

// podReadiness: not ready serves nothing new; degraded serves, and Reason says what is wrong.
type podReadiness struct {
	Pod      string `json:"pod"`
	Ready    bool   `json:"ready"`
	Degraded bool   `json:"degraded,omitempty"`
	Cut      bool   `json:"cut,omitempty"`
	Frozen   bool   `json:"frozen,omitempty"`
	Killed   bool   `json:"killed,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

// ready asks both stores of every pod.
func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	pods := s.podsNow()
	res := readiness{Ready: !s.draining.Load(), Draining: s.draining.Load(), Pods: make([]podReadiness, len(pods))}
	var asked sync.WaitGroup
	for i, p := range pods {
		asked.Go(func() { res.Pods[i] = s.probe(r.Context(), p) })
	}
	asked.Wait()
	for _, p := range res.Pods {
		res.Ready = res.Ready && p.Ready
	}
	code := http.StatusOK
	if !res.Ready {
		code = http.StatusServiceUnavailable
	}
	s.writeJSON(w, code, res)
}

// probe asks both stores for their fences and judges them against what the router knows.
func (s *Server) probe(ctx context.Context, p Pod) podReadiness {
	ctx, cancel := context.WithTimeout(ctx, s.opt.Probe)
	defer cancel()
	st := p.State()
	var redis, mysql finding
	var asked sync.WaitGroup
	asked.Go(func() { redis = s.look(ctx, p.ID, reservation.Redis, p.Redis, st) })
	asked.Go(func() { mysql = s.look(ctx, p.ID, reservation.MySQL, p.MySQL, st) })
	asked.Wait()
	return judge(p.ID, st, redis, mysql)
}

// finding is what is wrong with one store, as this router sees it. Both empty: nothing.
type finding struct {
	// down: it cannot be used. stale: it can, once the router has loaded the fence, which its next write makes it do.
	down, stale string
}

func (f finding) text() string { return f.down + f.stale }

// look says what is wrong with a store. Causes are for the log: anybody may ask.
func (s *Server) look(ctx context.Context, pod string, store reservation.Truth, from FenceReader, st State) finding {
	ok := st.RedisOK
	if store == reservation.MySQL {
		ok = st.MySQLOK
	}
	if from == nil {
		if !ok {
			return finding{down: store.String() + " does not answer"}
		}
		return finding{}
	}
	fence, err := from.ReadFence(ctx)
	if err != nil {
		s.opt.Logger.WarnContext(ctx, "a store does not answer", "pod", pod, "store", store.String(), "err", err)
		return finding{down: store.String() + " does not answer"}
	}
	f := compare(store, st.Stamp, fence)
	if store == reservation.Redis && st.Suspect && f == (finding{}) {
		return finding{down: "redis has lost writes, and is being restored"}
	}
	if f == (finding{}) && !ok {
		return finding{down: store.String() + " did not answer this router when it last asked"}
	}
	return f
}

// compare judges a fence by the router's stamp. A fence of MySQL that is behind is raised by the next write.
func compare(store reservation.Truth, st reservation.Stamp, fence reservation.Fence) finding {
	err := reservation.CheckFence(store, st, fence)
	switch {
	case fence.Suspect:
		return finding{down: store.String() + " is suspect: another process answers than the one that wrote the fence"}
	case err == nil:
		return finding{}
	case fence.Epoch > st.Epoch:
		return finding{stale: err.Error()}
	case store == reservation.MySQL && fence.Epoch > 0 && fence.Epoch < st.Epoch:
		return finding{}
	default:
		return finding{down: err.Error()}
	}
}

// judge: a pod is ready if it can serve, and degraded if something is wrong all the same.
func judge(pod string, st State, redis, mysql finding) podReadiness {
	stage := st.Stamp.Stage
	res := podReadiness{Pod: pod, Ready: true, Cut: st.Cut, Frozen: st.Frozen, Killed: st.Killed}
	var reasons []string
	say := func(text string) {
		if text != "" {
			reasons = append(reasons, text)
		}
	}
	say(redisWrong(stage, redis, st))
	say(mysql.text())
	switch {
	case !stage.Valid():
		res.Ready, reasons = false, append(reasons, "the router has not loaded the pod's fence")
	case stage.Truth() == reservation.Redis:
		res.Ready = redis.down == ""
		if mysql.down != "" {
			say("nothing can be claimed")
		}
	default:
		res.Ready = mysql.down == ""
	}
	res.Degraded = res.Ready && len(reasons) > 0
	res.Reason = strings.Join(reasons, "; ")
	return res
}

// redisWrong says what is wrong with Redis, where the stage has a use for it.
func redisWrong(stage reservation.Stage, redis finding, st State) string {
	switch {
	case stage == reservation.Complete:
		return ""
	case st.Cut:
		why := redis.text()
		if why == "" {
			why = "the router is not back on it yet"
		}
		return "cut from redis: " + why
	default:
		return redis.text()
	}
}
