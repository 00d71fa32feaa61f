package server

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/router"
)

// Pod is a pod as readiness and status see it.
type Pod struct {
	Router *router.Pod
	// Truth reads the fence of the store that decides.
	Truth interface {
		ReadFence(ctx context.Context) (reservation.Fence, error)
	}
}

// problem is an error of the admin API, in the form of the data API's.
type problem struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (s *Server) adminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", s.health)
	mux.HandleFunc("GET /readyz", s.ready)
	mux.Handle("GET /metrics", s.guarded(promhttp.HandlerFor(s.opt.Gatherer, promhttp.HandlerOpts{MaxRequestsInFlight: 4})))
	mux.Handle("GET /status", s.guarded(http.HandlerFunc(s.status)))
	return mux
}

// health says that the process lives, and asks nobody.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	s.writeJSON(w, http.StatusOK, struct {
		OK bool `json:"ok"`
	}{true})
}

// readiness is what /readyz answers.
type readiness struct {
	Ready    bool           `json:"ready"`
	Draining bool           `json:"draining"`
	Pods     []podReadiness `json:"pods"`
}

type podReadiness struct {
	Pod    string `json:"pod"`
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"`
}

// ready asks the truth of every pod.
func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	res := readiness{Ready: !s.draining.Load(), Draining: s.draining.Load(), Pods: make([]podReadiness, len(s.opt.Pods))}
	var asked sync.WaitGroup
	for i, p := range s.opt.Pods {
		asked.Go(func() {
			reason := s.probe(r.Context(), p)
			res.Pods[i] = podReadiness{Pod: p.Router.ID(), Ready: reason == "", Reason: reason}
		})
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

// probe says why a pod is not ready, or nothing. The cause is for the log: anybody may ask.
func (s *Server) probe(ctx context.Context, p Pod) string {
	ctx, cancel := context.WithTimeout(ctx, s.opt.Probe)
	defer cancel()
	st := p.Router.Stamp()
	store := st.Stage.Truth()
	f, err := p.Truth.ReadFence(ctx)
	if err != nil {
		s.opt.Logger.WarnContext(ctx, "not ready", "pod", p.Router.ID(), "store", store.String(), "err", err)
		return store.String() + " does not answer"
	}
	if err := reservation.CheckFence(store, st, f); err != nil {
		s.opt.Logger.WarnContext(ctx, "not ready", "pod", p.Router.ID(), "store", store.String(), "err", err)
		return err.Error()
	}
	return ""
}

// statusAnswer is what /status answers.
type statusAnswer struct {
	Pods []podStatus `json:"pods"`
}

type podStatus struct {
	Pod   string `json:"pod"`
	Stage string `json:"stage"`
	Epoch uint64 `json:"epoch"`
	Truth string `json:"truth"`
	// Queue is how many operations wait for the mirror. Breaker is closed, half-open or open; none without a mirror.
	Queue   int    `json:"queue"`
	Breaker string `json:"breaker"`
}

// status shows every pod as this router sees it, and asks nobody.
func (s *Server) status(w http.ResponseWriter, _ *http.Request) {
	ans := statusAnswer{Pods: []podStatus{}}
	for _, p := range s.opt.Pods {
		st := p.Router.Stamp()
		ps := podStatus{Pod: p.Router.ID(), Stage: st.Stage.String(), Epoch: st.Epoch, Truth: st.Stage.Truth().String(), Breaker: "none"}
		if q := p.Router.Queue(); q != nil {
			ps.Queue, ps.Breaker = q.Depth(), q.Breaker()
		}
		ans.Pods = append(ans.Pods, ps)
	}
	s.writeJSON(w, http.StatusOK, ans)
}

func (s *Server) writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(v); err != nil {
		s.opt.Logger.Debug("an answer was not taken", "err", err)
	}
}
