package server_test

import (
	"context"
	"errors"
	"testing"

	"github.com/twinhold/twinhold/internal/server"
	"github.com/twinhold/twinhold/reservation"
)

// fence is a store that answers with this fence, or not at all.
type fence struct {
	reservation.Fence
	err error
}

func (f fence) ReadFence(context.Context) (reservation.Fence, error) { return f.Fence, f.err }

func at(epoch uint64, stage reservation.Stage) fence {
	return fence{Fence: reservation.Fence{Stamp: reservation.Stamp{Epoch: epoch, Stage: stage}}}
}

// What readiness says of a router that is well, stale, cut, frozen or without a store, stage by stage.
func TestReadiness(t *testing.T) {
	down, none := fence{err: errors.New("dial tcp 10.0.0.7: hunter2")}, fence{}
	suspect := at(4, reservation.Cutover)
	suspect.Suspect = true
	suspectShadow := at(4, reservation.Shadow)
	suspectShadow.Suspect = true
	const legacy, shadow, handover, cutover, complete = reservation.Legacy, reservation.Shadow, reservation.Handover, reservation.Cutover, reservation.Complete
	for name, c := range map[string]struct {
		stage        reservation.Stage
		redis, mysql fence
		change       func(*server.State)
		code         int
		want         string
	}{
		"legacy":                   {legacy, at(4, legacy), at(4, legacy), nil, 200, `"ready":true`},
		"shadow":                   {shadow, at(4, shadow), at(4, shadow), nil, 200, `"ready":true`},
		"cutover":                  {cutover, at(4, cutover), at(4, cutover), nil, 200, `"ready":true`},
		"complete":                 {complete, at(4, complete), at(4, complete), nil, 200, `"ready":true`},
		"complete without Redis":   {complete, down, at(4, complete), nil, 200, `"ready":true`},
		"legacy without MySQL":     {legacy, at(4, legacy), down, nil, 200, `"ready":true,"degraded":true,"reason":"mysql does not answer; nothing can be claimed"`},
		"shadow without MySQL":     {shadow, at(4, shadow), down, nil, 200, `"ready":true,"degraded":true,"reason":"mysql does not answer; nothing can be claimed"`},
		"shadow without Redis":     {shadow, down, at(4, shadow), nil, 503, `"ready":false,"reason":"redis does not answer"`},
		"handover without Redis":   {handover, down, at(4, handover), nil, 503, `"ready":false,"reason":"redis does not answer"`},
		"shadow, Redis flushed":    {shadow, none, at(4, shadow), nil, 503, `"ready":false,"reason":"redis has no fence for this pod (caller: epoch 4, shadow)"`},
		"shadow, Redis suspect":    {shadow, suspectShadow, at(4, shadow), nil, 503, `"ready":false,"reason":"redis is suspect: another process answers than the one that wrote the fence"`},
		"shadow, Redis lost epoch": {shadow, at(3, shadow), at(4, shadow), nil, 503, `"ready":false,"reason":"redis fence says REGRESSED: it is at epoch 3, shadow; the caller at epoch 4, shadow"`},
		"MySQL behind":             {shadow, at(4, shadow), at(3, cutover), nil, 200, `"ready":true`},
		"stale":                    {cutover, at(5, shadow), at(4, cutover), nil, 200, `"ready":true,"degraded":true,"reason":"redis fence says STALE: it is at epoch 5, shadow; the caller at epoch 4, cutover"`},
		"cutover without MySQL":    {cutover, at(4, cutover), down, nil, 503, `"ready":false,"reason":"mysql does not answer"`},
		"cutover without Redis":    {cutover, down, at(4, cutover), nil, 200, `"ready":true,"degraded":true,"reason":"redis does not answer"`},
		"cutover, Redis suspect":   {cutover, suspect, at(4, cutover), nil, 200, `"ready":true,"degraded":true,"reason":"redis is suspect: another process answers than the one that wrote the fence"`},
		"cutover without both":     {cutover, down, down, nil, 503, `"ready":false,"reason":"redis does not answer; mysql does not answer"`},
		"cut":                      {cutover, down, at(4, cutover), func(s *server.State) { s.Cut = true }, 200, `"ready":true,"degraded":true,"cut":true,"reason":"cut from redis: redis does not answer"`},
		"cut, Redis back":          {cutover, at(4, cutover), at(4, cutover), func(s *server.State) { s.Cut = true }, 200, `"ready":true,"degraded":true,"cut":true,"reason":"cut from redis: the router is not back on it yet"`},
		"the router's own word":    {shadow, at(4, shadow), at(4, shadow), func(s *server.State) { s.RedisOK = false }, 503, `"ready":false,"reason":"redis did not answer this router when it last asked"`},
		"being restored":           {shadow, at(4, shadow), at(4, shadow), func(s *server.State) { s.Suspect = true }, 503, `"ready":false,"reason":"redis has lost writes, and is being restored"`},
		"frozen and killed": {
			shadow, at(4, shadow), at(4, shadow), func(s *server.State) { s.Frozen, s.Killed, s.Latch = true, true, "why" }, 200,
			`"ready":true,"frozen":true,"killed":true`,
		},
		"nothing loaded": {0, at(4, shadow), at(4, shadow), func(s *server.State) { s.Stamp = reservation.Stamp{} }, 503, ``},
	} {
		st := well(c.stage)()
		if c.change != nil {
			c.change(&st)
		}
		s := start(t, server.Options{Router: scripted{}, Pods: []server.Pod{{
			ID: "pod-1", State: func() server.State { return st }, Redis: c.redis, MySQL: c.mysql,
		}}})
		code, text := s.admin("/readyz", "")
		want := map[int]string{200: `{"ready":true,`, 503: `{"ready":false,`}[c.code] + `"draining":false,"pods":[{"pod":"pod-1",` + c.want + `}]}`
		if code != c.code || c.want != "" && text != want {
			t.Errorf("%s: %d %s, want %d %s", name, code, text, c.code, want)
		}
	}
}

// /status keeps its keys, and says what is not as usual.
func TestStatusOfThisRouter(t *testing.T) {
	st := server.State{Stamp: reservation.Stamp{Epoch: 7, Stage: reservation.Cutover}, Cut: true, Why: "redis does not answer", Frozen: true, Killed: true, Latch: "why"}
	s := start(t, server.Options{Router: scripted{}, Pods: []server.Pod{{ID: "pod-1", State: func() server.State { return st }}}})
	want := `{"pods":[{"pod":"pod-1","stage":"cutover","epoch":7,"truth":"mysql","queue":0,"breaker":"none","cut":true,"why":"redis does not answer","frozen":true,"killed":true,"latch":"why"}]}`
	if code, text := s.admin("/status", ""); code != 200 || text != want {
		t.Errorf("%d %s, want %s", code, text, want)
	}
}

// A client that has the configuration learns whether this router is of the same one.
func TestARouterTellsWhoseItIs(t *testing.T) {
	s := start(t, server.Options{Router: scripted{}, Pods: []server.Pod{
		{ID: "pod-1", Stores: "abc", State: well(reservation.Shadow)}, {ID: "pod-2", State: well(reservation.Shadow)},
	}})
	for pod, want := range map[string]string{"pod-1": `{"service":"twinhold","pod":"pod-1","stores":"abc"}`, "pod-2": "", "pod-3": "", "..%2fx": ""} {
		code, text := s.get(t, "http://"+s.srv.DataAddr()+"/pods/"+pod)
		if (code == 200) != (want != "") || want != "" && text != want {
			t.Errorf("%s: %d %s", pod, code, text)
		}
	}
	s.srv.SetPods([]server.Pod{{ID: "pod-3", Stores: "def", State: well(reservation.Legacy)}})
	if code, text := s.get(t, "http://"+s.srv.DataAddr()+"/pods/pod-3"); code != 200 || text != `{"service":"twinhold","pod":"pod-3","stores":"def"}` {
		t.Errorf("a pod that came later: %d %s", code, text)
	}
	if code, text := s.admin("/readyz", ""); code != 200 || text != `{"ready":true,"draining":false,"pods":[{"pod":"pod-3","ready":true}]}` {
		t.Errorf("readiness of a pod that came later: %d %s", code, text)
	}
}
