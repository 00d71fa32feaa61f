package server

import (
	"encoding/json"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

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
	mux.Handle(s.adminService())
	return mux
}

// health says that the process lives, and asks nobody.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	s.writeJSON(w, http.StatusOK, struct {
		OK bool `json:"ok"`
	}{true})
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
	// What is not as usual. Why says why the router is cut.
	Cut    bool   `json:"cut,omitempty"`
	Why    string `json:"why,omitempty"`
	Frozen bool   `json:"frozen,omitempty"`
	Killed bool   `json:"killed,omitempty"`
	Latch  string `json:"latch,omitempty"`
}

// status shows every pod as this router sees it, and asks nobody. AdminService.Status shows the whole fleet's.
func (s *Server) status(w http.ResponseWriter, _ *http.Request) {
	ans := statusAnswer{Pods: []podStatus{}}
	for _, p := range s.podsNow() {
		st := p.State()
		ps := podStatus{
			Pod: p.ID, Stage: st.Stamp.Stage.String(), Epoch: st.Stamp.Epoch, Breaker: "none",
			Cut: st.Cut, Why: st.Why, Frozen: st.Frozen, Killed: st.Killed, Latch: st.Latch,
		}
		if st.Stamp.Stage.Valid() {
			ps.Truth = st.Stamp.Stage.Truth().String()
		}
		if p.Mirror != nil {
			ps.Queue, ps.Breaker = p.Mirror()
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
