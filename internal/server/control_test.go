package server_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	twinholdv1 "github.com/twinhold/twinhold/api/twinhold/v1"
	"github.com/twinhold/twinhold/api/twinhold/v1/twinholdv1connect"
	"github.com/twinhold/twinhold/internal/server"
	"github.com/twinhold/twinhold/killswitch"
	"github.com/twinhold/twinhold/reservation"
)

// brakes is a kill switch that writes down what it was asked, and by whom.
type brakes struct {
	mu    sync.Mutex
	calls []string
	fail  error // what every change answers, if not nil
	// during is called while a change is under way.
	during func(ctx context.Context)
}

// boundBrakes is brakes for one pod and one person.
type boundBrakes struct {
	*brakes
	pod, by string
}

func (b *brakes) of(pod string) server.Pod {
	return server.Pod{
		ID: pod, State: well(reservation.Shadow),
		Control: func(by string) (server.Control, error) { return boundBrakes{b, pod, by}, nil },
	}
}

func (b boundBrakes) note(ctx context.Context, words ...string) error {
	if b.during != nil {
		b.during(ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, strings.Join(append([]string{b.by, b.pod}, words...), " "))
	return b.fail
}

func (b *brakes) said() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := strings.Join(b.calls, ", ")
	b.calls = nil
	return s
}

func (b boundBrakes) Status(ctx context.Context, _ bool) killswitch.Status {
	_ = b.note(ctx, "status")
	epoch, none, no, queue := uint64(4), uint64(0), false, 0
	return killswitch.Status{
		Killed: &no, Frozen: &no, Suspect: &no, Queue: &queue, Incarnation: &none, IncarnationEpoch: &none,
		Redis: killswitch.StoreStatus{Epoch: &none}, MySQL: killswitch.StoreStatus{Epoch: &none},
		Pod: b.pod, Stage: "shadow", Epoch: &epoch, Truth: "redis", Breaker: "closed", MaxStage: "cutover",
		Debt:    &reservation.Debt{Reservations: 2, Units: 5, DrainsInS: 1.5},
		Routers: []killswitch.RouterStatus{{ID: "r1", Epoch: 4, Stage: "shadow", SeenSAgo: 0.1, Breaker: "closed"}}, HeldBecause: []string{"debt"},
	}
}

func (b boundBrakes) gate(v killswitch.Verdict) []killswitch.Gate {
	return []killswitch.Gate{{Name: killswitch.GateDebt, Verdict: v, Figure: "2 reservations", Reason: "wait"}}
}

func (b boundBrakes) Plan(ctx context.Context, o killswitch.Order) (killswitch.Plan, error) {
	return killswitch.Plan{
		Pod: b.pod, Epoch: 4, From: "shadow", To: o.To.String(), Steps: []killswitch.Step{{From: "shadow", To: "handover", Gates: b.gate(killswitch.Fail)}},
	}, b.note(ctx, "plan", o.To.String())
}

func (b boundBrakes) Execute(ctx context.Context, o killswitch.Order) (killswitch.FlipResult, error) {
	return killswitch.FlipResult{
		Pod: b.pod, From: "shadow", Stage: o.To.String(), Epoch: 6, Moves: []killswitch.Moved{{Step: killswitch.Step{From: "shadow", To: "handover"}, Epoch: 5, Acks: 1, Routers: 1}},
	}, b.note(ctx, append([]string{"flip", o.To.String(), o.Reason, o.Ticket}, o.Waive...)...)
}

func (b boundBrakes) Kill(ctx context.Context, reason, ticket string) (killswitch.KillResult, error) {
	return killswitch.KillResult{Pod: b.pod, Epoch: 5, Stage: "shadow", Before: "cutover", Acks: 1, Routers: 2, Laggards: []string{"r2"}, TookMS: 1.5},
		b.note(ctx, "kill", reason, ticket)
}

func (b boundBrakes) Rearm(ctx context.Context, o killswitch.Order, execute bool) (killswitch.RearmResult, error) {
	what := "would rearm"
	if execute {
		what = "rearm"
	}
	return killswitch.RearmResult{Pod: b.pod, Epoch: 6, Stage: "shadow", Killed: !execute, Done: execute, Gates: b.gate(killswitch.Pass)}, b.note(ctx, what, o.Reason)
}

func (b boundBrakes) Drill(ctx context.Context, reason, _ string) (killswitch.DrillResult, error) {
	return killswitch.DrillResult{Pod: b.pod, Before: "shadow", Stage: "shadow", KillEpoch: 5, Epoch: 6}, b.note(ctx, "drill", reason)
}

func (b boundBrakes) Freeze(ctx context.Context, bucket reservation.Bucket, on bool, reason, _ string) (killswitch.FreezeResult, error) {
	what := map[bool]string{true: "freeze", false: "unfreeze"}[on]
	return killswitch.FreezeResult{Pod: b.pod, Frozen: on, Reached: []string{"redis", "mysql"}}, b.note(ctx, what, bucket.String(), reason)
}

func (b boundBrakes) Audit(ctx context.Context) ([]reservation.AuditRecord, error) {
	at := time.Date(2026, 1, 31, 3, 0, 0, 0, time.UTC)
	if b.pod == "pod-2" {
		at = at.Add(-time.Hour)
	}
	return []reservation.AuditRecord{{
		At: at, Pod: b.pod, Action: reservation.ActionKill, By: "anna", Reason: "why", Store: "redis",
		Before: reservation.Stamp{Epoch: 4, Stage: reservation.Cutover}, After: reservation.Stamp{Epoch: 5, Stage: reservation.Shadow},
	}}, b.note(ctx, "audit")
}

// well is a pod of a router that has nothing to complain about.
func well(stage reservation.Stage) func() server.State {
	return func() server.State {
		return server.State{Stamp: reservation.Stamp{Epoch: 4, Stage: stage}, RedisOK: true, MySQLOK: true}
	}
}

const threeRoles = `tokens:
  - {name: dashboard, role: viewer, token: 0123456789abcdef-v}
  - {name: anna, role: oncall, token: 0123456789abcdef-o}
  - {name: boris, role: operator, token: 0123456789abcdef-p}
`

func withBrakes(t *testing.T, tokens string) (*served, *brakes) {
	t.Helper()
	b := &brakes{}
	opt := server.Options{Router: scripted{}, Pods: []server.Pod{b.of("pod-1"), b.of("pod-2")}}
	if tokens != "" {
		var err error
		if opt.Tokens, err = server.ParseTokens([]byte(tokens)); err != nil {
			t.Fatal(err)
		}
	}
	return start(t, opt), b
}

// order posts to the admin API.
func (s *served) order(method, token, body string) (int, string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, "http://"+s.srv.AdminAddr()+"/twinhold.v1.AdminService/"+method, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return s.do(req)
}

func (s *served) do(req *http.Request) (int, string) {
	s.t.Helper()
	res, err := s.http.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res.StatusCode, string(bytes.TrimSpace(text))
}

// Every call of the admin API, for each role: who may, and what reaches the kill switch under whose name.
func TestRolesOfTheAdminAPI(t *testing.T) {
	s, b := withBrakes(t, threeRoles)
	tokens := map[string]string{"viewer": "0123456789abcdef-v", "oncall": "0123456789abcdef-o", "operator": "0123456789abcdef-p"}
	names := map[string]string{"viewer": "dashboard", "oncall": "anna", "operator": "boris"}
	everybody, brake, all := "viewer oncall operator", "oncall operator", "operator"
	for _, c := range []struct{ method, body, may, call string }{
		{"Status", `{"pod":"pod-1"}`, everybody, "pod-1 status"},
		{"Audit", `{"pod":"pod-1"}`, everybody, "pod-1 audit"},
		{"Flip", `{"pod":"pod-1","to":"cutover"}`, everybody, "pod-1 plan cutover"},
		{"Rearm", `{"pod":"pod-1"}`, everybody, "pod-1 would rearm "},
		{"Kill", `{"pod":"pod-1","reason":"why","ticket":"T-1"}`, brake, "pod-1 kill why T-1"},
		{"Freeze", `{"pod":"pod-1","reason":"why"}`, brake, "pod-1 freeze 0:0:0 why"},
		{"Freeze", `{"pod":"pod-1","bucket":{"shopId":"1","itemId":"2","groupId":"3"},"reason":"why"}`, brake, "pod-1 freeze 1:2:3 why"},
		{"Unfreeze", `{"pod":"pod-1"}`, all, "pod-1 unfreeze 0:0:0 "},
		{"Flip", `{"pod":"pod-1","to":"handover","execute":true,"reason":"why","ticket":"T","waive":["latency"]}`, all, "pod-1 flip handover why T latency"},
		{"Rearm", `{"pod":"pod-1","execute":true,"reason":"why"}`, all, "pod-1 rearm why"},
		{"Drill", `{"pod":"pod-1","reason":"why"}`, all, "pod-1 drill why"},
	} {
		for role, token := range tokens {
			code, text := s.order(c.method, token, c.body)
			called := b.said()
			if strings.Contains(c.may, role) {
				if code != 200 || called != names[role]+" "+c.call {
					t.Errorf("%s %s by %s: %d %s, called %q, want %q", c.method, c.body, role, code, text, called, c.call)
				}
				continue
			}
			if code != 403 || !strings.Contains(text, `"permission_denied"`) || called != "" {
				t.Errorf("%s %s by %s: %d %s, called %q, want 403 and nothing called", c.method, c.body, role, code, text, called)
			}
		}
		for _, token := range []string{"", "0123456789abcdef", "0123456789abcdef-x"} {
			if code, text := s.order(c.method, token, c.body); code != 401 || !strings.Contains(text, `"unauthenticated"`) || b.said() != "" {
				t.Errorf("%s with token %q: %d %s, want 401 and nothing called", c.method, token, code, text)
			}
		}
	}
}

func TestTokensCanBeChangedWhileItServes(t *testing.T) {
	s, _ := withBrakes(t, threeRoles)
	tokens, err := server.ParseTokens([]byte(`tokens: [{name: new, role: viewer, token: fedcba9876543210}]`))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.srv.SetTokens(tokens); err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]int{"0123456789abcdef-p": 401, "fedcba9876543210": 200} {
		if code, text := s.order("Status", token, `{}`); code != want {
			t.Errorf("token %s: %d %s, want %d", token, code, text, want)
		}
		if code, _ := s.admin("/status", token); code != want {
			t.Errorf("/status with token %s: %d, want %d", token, code, want)
		}
	}
	open := start(t, server.Options{Router: scripted{}, AdminListen: "0.0.0.0:0", Tokens: tokens})
	if err := open.srv.SetTokens(nil); !errors.Is(err, server.ErrOpenAdmin) {
		t.Errorf("the last token of an open listener went: %v", err)
	}
}

// A page in a browser on this machine, whose name was made to resolve to loopback, must not kill a pod.
func TestWithoutTokensOnlyThisMachinesNamesMayAsk(t *testing.T) {
	s, b := withBrakes(t, "")
	for host, want := range map[string]int{
		"127.0.0.1": 200, "localhost:7071": 200, "[::1]:7071": 200, "[::1]": 200, "evil.example": 403, "evil.example:7071": 403, "localhost.evil.example": 403,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.srv.AdminAddr()+"/twinhold.v1.AdminService/Kill", strings.NewReader(`{"pod":"pod-1","reason":"why"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		req.Header.Set("Content-Type", "application/json")
		code, text := s.do(req)
		called := b.said()
		if code != want || (called != "") != (want == 200) {
			t.Errorf("host %s: %d %s, called %q", host, code, text, called)
		}
		if want == 200 && called != "loopback pod-1 kill why " {
			t.Errorf("it was done by %q", called)
		}
	}
	// What a form in a page can send is no call.
	for _, kind := range []string{"text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.srv.AdminAddr()+"/twinhold.v1.AdminService/Kill", strings.NewReader(`{"pod":"pod-1","reason":"why"}`))
		if err != nil {
			t.Fatal(err)
		}
		if kind != "" {
			req.Header.Set("Content-Type", kind)
		}
		if code, text := s.do(req); code != 415 || b.said() != "" {
			t.Errorf("content type %q: %d %s", kind, code, text)
		}
	}
	if code, _ := s.admin("/twinhold.v1.AdminService/Kill", ""); code != 405 {
		t.Errorf("a GET of Kill: %d", code)
	}
}

func TestAdminAnswers(t *testing.T) {
	s, b := withBrakes(t, "")
	status := `{"pod":"POD","stage":"shadow","epoch":"4","truth":"redis","killed":false,"frozen":false,"debt":{"reservations":"2","units":"5","drainsInS":1.5},` +
		`"queue":"0","breaker":"closed","routers":[{"id":"r1","epoch":"4","stage":"shadow","seenSAgo":0.1,"cut":false,"queue":"0","breaker":"closed","skipped":"0"}],` +
		`"heldBecause":["debt"],"maxStage":"cutover","suspect":false,"incarnation":"0","incarnationEpoch":"0","redis":{"epoch":"0"},"mysql":{"epoch":"0"}}`
	record := `{"at":"TIME","pod":"POD","action":"kill","by":"anna","reason":"why","epochBefore":"4","stageBefore":"cutover","epochAfter":"5","stageAfter":"shadow","store":"redis"}`
	of := func(text, pod string) string { return strings.ReplaceAll(text, "POD", pod) }
	for _, c := range []struct{ method, body, want string }{
		{"Status", `{"pod":"pod-2"}`, `{"pods":[` + of(status, "pod-2") + `]}`},
		{"Status", `{}`, `{"pods":[` + of(status, "pod-1") + `,` + of(status, "pod-2") + `]}`},
		{"Audit", `{}`, `{"records":[` + of(record, "pod-2") + `,` + of(record, "pod-1") + `]}`}, // by time
		{"Flip", `{"pod":"pod-1","to":"cutover"}`, `{"pod":"pod-1","from":"shadow","to":"cutover","stage":"shadow","epoch":"4","steps":[{"from":"shadow","to":"handover","gates":[` +
			`{"name":"debt","verdict":"fail","figure":"2 reservations","reason":"wait","waivable":false,"waived":false,"awaited":false}]}],"ready":false,"done":false}`},
		{"Flip", `{"pod":"pod-1","to":"handover","execute":true}`, `{"pod":"pod-1","from":"shadow","to":"handover","stage":"handover","epoch":"6","steps":[{"from":"shadow","to":"handover",` +
			`"epoch":"5","replicas":{"reached":0,"connected":0},"acks":1,"routers":1}],"ready":true,"done":true}`},
		{"Kill", `{"pod":"pod-1","reason":"why"}`, `{"kills":[{"pod":"pod-1","epoch":"5","stage":"shadow","before":"cutover","already":false,"acks":1,"routers":2,"laggards":["r2"],` +
			`"tookMs":1.5,"mysql":false,"replicas":{"reached":0,"connected":0}}]}`},
		{"Rearm", `{"pod":"pod-1"}`, `{"pod":"pod-1","epoch":"6","stage":"shadow","killed":true,"gates":[{"name":"debt","verdict":"pass","figure":"2 reservations","reason":"wait",` +
			`"waivable":false,"waived":false,"awaited":false}],"ready":true,"done":false}`},
		{"Drill", `{"pod":"pod-1"}`, `{"pod":"pod-1","before":"shadow","stage":"shadow","killEpoch":"5","epoch":"6","acks":0,"routers":0,"killMs":0,"ackedMs":0,"rearmMs":0}`},
		{"Freeze", `{"pod":"pod-1","reason":"why"}`, `{"brake":{"pod":"pod-1","frozen":true,"reached":["redis","mysql"]}}`},
		{"Unfreeze", `{"pod":"pod-1"}`, `{"brake":{"pod":"pod-1","frozen":false,"reached":["redis","mysql"]}}`},
	} {
		if code, text := s.order(c.method, "", c.body); code != 200 || golden(text) != c.want {
			t.Errorf("%s %s:\n got %d %s\nwant 200 %s", c.method, c.body, code, golden(text), c.want)
		}
	}
	b.said()
	if code, _ := s.order("Kill", "", `{"all":true,"reason":"why"}`); code != 200 {
		t.Errorf("kill of all: %d", code)
	}
	if called := b.said(); !strings.Contains(called, "pod-1 kill") || !strings.Contains(called, "pod-2 kill") {
		t.Errorf("kill of all called %q", called)
	}
}

func TestHostileAdminInput(t *testing.T) {
	s, b := withBrakes(t, "")
	long := strings.Repeat("x", 501)
	for _, c := range []struct {
		method, body string
		code         int
	}{
		{"Kill", ``, 400},
		{"Kill", `null`, 400},
		{"Kill", `[]`, 400},
		{"Kill", `{"pod":"pod-1"}`, 400},                              // no reason
		{"Kill", `{"pod":"pod-1","reason":"  "}`, 400},                // none either
		{"Kill", `{"reason":"why"}`, 400},                             // no pod
		{"Kill", `{"pod":"pod-1","all":true,"reason":"why"}`, 400},    // which?
		{"Kill", `{"pod":"pod-1","reason":"` + long + `"}`, 400},      // it stands in the audit for good
		{"Kill", `{"pod":"pod-1","reason":"a\nb"}`, 400},              // and in logs
		{"Kill", `{"pod":"pod-1","reason":"why","force":true}`, 400},  // an unknown field
		{"Kill", `{"pod":"pod-1","pod":"pod-2","reason":"why"}`, 400}, // twice
		{"Kill", `{"pod":"pod-9","reason":"why"}`, 404},               //
		{"Kill", `{"pod":"{pod-1}:fence","reason":"why"}`, 404},       //
		{"Kill", `{"pod":"` + long + `","reason":"why"}`, 404},        //
		{"Kill", `{"pod":"pod-1","reason":"` + strings.Repeat("x", 600<<10) + `"}`, 429},
		{"Flip", `{"pod":"pod-1"}`, 400},
		{"Flip", `{"pod":"pod-1","to":"CUTOVER!"}`, 400},
		{"Flip", `{"to":"cutover"}`, 400},
		{"Flip", `{"pod":"pod-1","to":"cutover","execute":"yes"}`, 400},
		{"Flip", `{"pod":"pod-1","to":"cutover","waive":["latency"]}`, 400}, // without a reason
		{"Flip", `{"pod":"pod-1","to":"cutover","wait":"-5s"}`, 400},
		{"Flip", `{"pod":"pod-1","to":"cutover","reason":"r","waive":["a","b","c","d","e","f","g","h","i","j","k"]}`, 400},
		{"Freeze", `{"pod":"pod-1","bucket":{"shopId":"1"},"reason":"why"}`, 400},
		{"Freeze", `{"pod":"pod-1","bucket":{"shopId":"-1","itemId":"1","groupId":"1"},"reason":"why"}`, 400},
		{"Freeze", `{"pod":"pod-1"}`, 400},
		{"Rearm", `{}`, 400},
		{"Drill", `{"reason":"why"}`, 400},
		{"Status", `{"pod":"pod-9"}`, 404},
		{"Audit", `{"pod":"pod-9"}`, 404},
		{"Reset", `{}`, 404},
	} {
		if code, text := s.order(c.method, "", c.body); code != c.code || len(text) > 500 {
			t.Errorf("%s %.100s: %d %.600s, want %d", c.method, c.body, code, text, c.code)
		}
		if called := b.said(); called != "" {
			t.Errorf("%s %.100s called %s", c.method, c.body, called)
		}
	}
}

func TestAdminErrorsHaveTheirCodes(t *testing.T) {
	s, b := withBrakes(t, "")
	secret := errors.New("hunter2")
	shut := []killswitch.Gate{{Name: "debt", Verdict: killswitch.Fail, Figure: "7 reservations"}}
	for _, c := range []struct {
		err        error
		status     int
		code, text string
	}{
		{&killswitch.RefusedError{Pod: "pod-1", Action: "flip", Reason: "a gate is shut", Hint: "wait", Gates: shut}, 400, "failed_precondition", "gate debt: fail (7 reservations): wait"},
		{&killswitch.NoRefugeError{Pod: "pod-1", Cause: errors.New("dial")}, 503, "unavailable", "is not killed"},
		{&killswitch.IncompleteError{Pod: "pod-1", Did: "killed", Left: "mysql", Cause: errors.New("dial")}, 503, "unavailable", "send the same again"},
		{reservation.ErrLatched, 400, "failed_precondition", "rearm it first"},
		{reservation.ErrNotLatched, 400, "failed_precondition", "nothing to rearm"},
		{reservation.ErrRestoring, 503, "unavailable", "another restore"},
		{&reservation.InvalidError{Field: "waive", Reason: "names no gate"}, 400, "invalid_argument", "names no gate"},
		{&reservation.UnavailableError{Store: reservation.Redis, Cause: errors.New("dial tcp: refused")}, 503, "unavailable", "redis is unavailable: dial tcp: refused"},
		{context.DeadlineExceeded, 503, "unavailable", "deadline"},
		{secret, 500, "internal", "log has its cause"},
	} {
		b.fail = c.err
		for method, body := range map[string]string{
			"Kill": `{"pod":"pod-1","reason":"why"}`, "Flip": `{"pod":"pod-1","to":"cutover","execute":true}`, "Rearm": `{"pod":"pod-1","execute":true}`,
			"Drill": `{"pod":"pod-1"}`, "Freeze": `{"pod":"pod-1","reason":"why"}`,
		} {
			code, text := s.order(method, "", body)
			if code != c.status || !strings.Contains(text, `"code":"`+c.code+`"`) || !strings.Contains(text, c.text) || strings.Contains(text, "hunter2") {
				t.Errorf("%s with %v: %d %s, want %d %s %q", method, c.err, code, text, c.status, c.code, c.text)
			}
		}
	}
}

// A refusal tells its gates to a program, too; and a kill of all that failed somewhere is no success.
func TestRefusalsCarryTheirGates(t *testing.T) {
	s, b := withBrakes(t, "")
	c := twinholdv1connect.NewAdminServiceClient(h2c(t), "http://"+s.srv.AdminAddr(), connect.WithGRPC())
	b.fail = &killswitch.RefusedError{Pod: "pod-1", Action: "flip", Reason: "r", Gates: []killswitch.Gate{{Name: "debt", Verdict: killswitch.Fail}}}
	_, err := c.Flip(t.Context(), connect.NewRequest(&twinholdv1.FlipRequest{Pod: "pod-1", To: "cutover", Execute: true}))
	refused, ok := detail(t, err).(*twinholdv1.Refusal)
	if connect.CodeOf(err) != connect.CodeFailedPrecondition || !ok || len(refused.GetGates()) != 1 || refused.GetGates()[0].GetName() != "debt" {
		t.Errorf("a refusal: %v with %v", err, refused)
	}
	b.fail = &killswitch.NoRefugeError{Pod: "pod-1", Cause: errors.New("dial")}
	_, err = c.Kill(t.Context(), connect.NewRequest(&twinholdv1.KillRequest{All: true, Reason: "why"}))
	kills, ok := detail(t, err).(*twinholdv1.KillResponse)
	if connect.CodeOf(err) != connect.CodeUnavailable || !ok || len(kills.GetKills()) != 2 || kills.GetKills()[0].GetError() == "" {
		t.Errorf("a kill of all that failed: %v with %v", err, kills)
	}
}

func detail(t *testing.T, err error) any {
	t.Helper()
	ce := new(connect.Error)
	if !errors.As(err, &ce) || len(ce.Details()) != 1 {
		t.Fatalf("%v has no detail", err)
	}
	v, err := ce.Details()[0].Value()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// What changes a pod goes on when its caller hangs up; a flip, which may wait for an hour, does not.
func TestAKillGoesOnWithoutItsCaller(t *testing.T) {
	s, b := withBrakes(t, "")
	for method, c := range map[string]struct {
		body string
		ends bool
	}{
		"Kill": {`{"pod":"pod-1","reason":"why"}`, false}, "Freeze": {`{"pod":"pod-1","reason":"why"}`, false},
		"Drill": {`{"pod":"pod-1"}`, false}, "Rearm": {`{"pod":"pod-1","execute":true}`, false},
		"Flip": {`{"pod":"pod-1","to":"cutover","execute":true}`, true},
	} {
		taken, gone, seen := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		b.during = func(ctx context.Context) {
			close(taken)
			<-gone
			if c.ends {
				<-ctx.Done()
			}
			seen <- ctx.Err()
		}
		ctx, hangUp := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.srv.AdminAddr()+"/twinhold.v1.AdminService/"+method, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		go func() {
			<-taken
			hangUp()
		}()
		res, err := s.http.Do(req)
		if err == nil {
			res.Body.Close()
			t.Errorf("%s: the caller did not hang up", method)
		}
		close(gone)
		if err := <-seen; (err != nil) != c.ends {
			t.Errorf("%s: its context says %v once its caller is gone", method, err)
		}
	}
}

// A router without a kill switch says so, and shows the rest.
func TestAPodThatCannotBeMovedHere(t *testing.T) {
	s := start(t, server.Options{Router: scripted{}, Pods: []server.Pod{{ID: "pod-1", State: well(reservation.Shadow)}}})
	if code, text := s.order("Kill", "", `{"pod":"pod-1","reason":"why"}`); code != 501 || !strings.Contains(text, "does not move pod pod-1") {
		t.Errorf("%d %s", code, text)
	}
	if code, text := s.admin("/status", ""); code != 200 || !strings.Contains(text, `"stage":"shadow"`) {
		t.Errorf("%d %s", code, text)
	}
}
