package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/server"
	"github.com/twinhold/twinhold/reservation"
)

// scripted is a router whose claim and reserve are the test's; nothing else is called.
type scripted struct {
	server.Router
	claim   func(ctx context.Context) (reservation.ClaimResult, error)
	reserve func(ctx context.Context) (reservation.Result, error)
}

func (r scripted) Reserve(ctx context.Context, _ int64, _ string, _ []reservation.Line, _ time.Duration) (reservation.Result, error) {
	return r.reserve(ctx)
}

func (r scripted) Claim(ctx context.Context, _ int64, id reservation.ID) (reservation.ClaimResult, error) {
	res, err := r.claim(ctx)
	res.Record.ID = id
	return res, err
}

const aClaim = `{"shopId":"1","reservationId":"0198f2a0-7c1e-7abc-8def-0123456789ab"}`

func TestEveryErrorHasItsCode(t *testing.T) {
	var next error
	s := start(t, server.Options{Router: scripted{claim: func(context.Context) (reservation.ClaimResult, error) {
		return reservation.ClaimResult{}, next
	}}})
	secret := errors.New("dial tcp 10.0.0.7:6379: password hunter2")
	for _, c := range []struct {
		err        error
		status     int
		code, text string
	}{
		{&reservation.InvalidError{Field: "f", Reason: "r"}, 400, "invalid_argument", "f r"},
		{reservation.ErrNotFound, 404, "not_found", "no such reservation"},
		{&reservation.UnknownBucketError{}, 404, "not_found", "unknown bucket"},
		{reservation.ErrKeyConflict, 409, "already_exists", "another request"},
		{&reservation.ConflictError{Op: reservation.OpClaim, State: reservation.Released}, 400, "failed_precondition", "cannot claim"},
		{&reservation.ShortError{}, 400, "failed_precondition", "cannot take"},
		{reservation.ErrBusy, 503, "unavailable", "retry with the same key"},
		{reservation.ErrFrozen, 503, "unavailable", "frozen"},
		{&reservation.UnknownOutcomeError{Store: reservation.Redis, Op: reservation.OpClaim, Cause: secret}, 503, "unavailable", "unknown: retry with the same key"},
		{&reservation.UnavailableError{Store: reservation.MySQL, Cause: secret}, 503, "unavailable", "mysql is unavailable"},
		{&reservation.FenceError{Store: reservation.Redis, Verdict: reservation.Stale}, 503, "unavailable", "retry with the same key"},
		{context.DeadlineExceeded, 503, "unavailable", "outcome unknown"},
		{&reservation.CorruptError{What: "hunter2"}, 500, "internal", "log has its cause"},
		{secret, 500, "internal", "log has its cause"},
	} {
		next = c.err
		status, text := s.post("Claim", aClaim)
		if status != c.status || !strings.Contains(text, `"code":"`+c.code+`"`) || !strings.Contains(text, c.text) || strings.Contains(text, "hunter2") {
			t.Errorf("%v: %d %s, want %d %s %q and no cause", c.err, status, text, c.status, c.code, c.text)
		}
	}
}

// What a caller is not told stands in the log, with whose it was; what a caller is told is not repeated there.
func TestTheLogHasTheCause(t *testing.T) {
	var next error
	var out syncBuffer
	r := scripted{
		claim:   func(context.Context) (reservation.ClaimResult, error) { return reservation.ClaimResult{}, next },
		reserve: func(context.Context) (reservation.Result, error) { return reservation.Result{}, next },
	}
	s := start(t, server.Options{
		Router: r, Logger: slog.New(slog.NewTextHandler(&out, nil)), PodOf: func(shop int64) string { return fmt.Sprintf("pod-of-%d", shop) },
	})
	const aReserve = `{"shopId":"2","idempotencyKey":"order-17-of-anna","lines":[{"itemId":"1","groupId":"1","quantity":1}]}`
	for _, c := range []struct {
		err            error
		method, body   string
		level, has, of string
	}{
		{
			&reservation.UnavailableError{Store: reservation.MySQL, Cause: errors.New("dial tcp 10.0.0.7:3306: connection refused")}, "Claim", aClaim,
			"WARN", "mysql is unavailable: dial tcp 10.0.0.7:3306: connection refused", "pod=pod-of-1 op=Claim shop=1 reservation=0198f2a0-7c1e-7abc-8def-0123456789ab",
		},
		{errors.New("Duplicate entry 'order-17-of-anna' for key"), "Reserve", aReserve, "ERROR", "Duplicate entry <key>", "pod=pod-of-2 op=Reserve shop=2 cause"},
		{&reservation.CorruptError{Store: reservation.Redis, What: "{p}:key:2:order-17-of-anna is a list"}, "Reserve", aReserve, "ERROR", "{p}:key:2:<key> is a list", "pod=pod-of-2"},
		{reservation.ErrBusy, "Reserve", aReserve, "WARN", "busy", "pod=pod-of-2"},
		{reservation.ErrNotFound, "Claim", aClaim, "", "", ""},
		{reservation.ErrKeyConflict, "Reserve", aReserve, "", "", ""},
	} {
		next = c.err
		s.post(c.method, c.body)
		said := out.take()
		if c.level == "" {
			if said != "" {
				t.Errorf("%v is the caller's, and logged: %s", c.err, said)
			}
			continue
		}
		if strings.Count(said, "\n") != 1 || !strings.Contains(said, "level="+c.level) || !strings.Contains(said, c.has) || !strings.Contains(said, c.of) || strings.Contains(said, "anna") {
			t.Errorf("%v is logged as %s, want one line, %s, %q, %q, no key", c.err, said, c.level, c.has, c.of)
		}
	}
	for range 5 {
		s.post("Claim", aClaim) // next is of no interest to the log
	}
	next = reservation.ErrBusy
	for range 5 {
		s.post("Reserve", aReserve)
	}
	if said := out.take(); said != "" {
		t.Errorf("a cause that was logged a moment ago is logged again: %s", said)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
	defer cancel()
	if err := s.srv.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	if said := out.take(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "left_out=5") {
		t.Errorf("what was left out is told as %s", said)
	}
}

// syncBuffer is a log that handlers write and a test reads.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// take gives what was written, and empties it.
func (b *syncBuffer) take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.buf.String()
	b.buf.Reset()
	return s
}

func TestAPanicEndsOneCall(t *testing.T) {
	panics := true
	s := start(t, server.Options{Router: scripted{claim: func(context.Context) (reservation.ClaimResult, error) {
		if panics {
			panic("planted")
		}
		return reservation.ClaimResult{Record: reservation.Record{State: reservation.Refused}, Late: true}, nil
	}}})
	s.wants(500, `{"code":"internal","message":"TEXT"}`, "Claim", aClaim)
	panics = false
	s.wants(200, `{"state":"REFUND_REQUIRED","late":true}`, "Claim", aClaim)
	if _, text := s.admin("/metrics", ""); !strings.Contains(text, `twinhold_api_panics_total{op="Claim"} 1`) {
		t.Error("the panic is not counted")
	}
}

func TestEveryCallHasADeadline(t *testing.T) {
	var left time.Duration
	s := start(t, server.Options{
		Deadline: 3 * time.Second, MaxDeadline: 7 * time.Second,
		Router: scripted{claim: func(ctx context.Context) (reservation.ClaimResult, error) {
			end, ok := ctx.Deadline()
			if !ok {
				return reservation.ClaimResult{}, errors.New("no deadline")
			}
			left = time.Until(end)
			return reservation.ClaimResult{Record: reservation.Record{State: reservation.Claimed}}, nil
		}},
	})
	for header, want := range map[string]time.Duration{"": 3 * time.Second, "2000": 2 * time.Second, "3600000": 7 * time.Second} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.srv.DataAddr()+"/twinhold.v1.ReservationService/Claim", strings.NewReader(aClaim))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json; charset=utf-8")
		if header != "" {
			req.Header.Set("Connect-Timeout-Ms", header)
		}
		res, err := s.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 200 || left > want || left < want-time.Second {
			t.Errorf("timeout %q: status %d, %v left, want just under %v", header, res.StatusCode, left, want)
		}
	}
}

func TestShutdownAnswersWhatWasTaken(t *testing.T) {
	taken, proceed := make(chan struct{}), make(chan struct{})
	s := start(t, server.Options{Router: scripted{claim: func(context.Context) (reservation.ClaimResult, error) {
		close(taken)
		<-proceed
		return reservation.ClaimResult{Record: reservation.Record{State: reservation.Claimed}}, nil
	}}})
	var background sync.WaitGroup
	background.Go(func() {
		if code, text, err := s.try("Claim", aClaim); err != nil || code != 200 {
			t.Errorf("a call that was taken: %d %s, %v", code, text, err)
		}
	})
	<-taken
	background.Go(func() {
		if err := s.srv.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
	// It is draining once it takes no connection; until then a new one is only closed again.
	for {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.srv.DataAddr())
		if err != nil {
			break
		}
		c.Close()
	}
	if code, text := s.admin("/readyz", ""); code != 503 || !strings.Contains(text, `"draining":true`) {
		t.Errorf("readiness while it drains: %d %s", code, text)
	}
	close(proceed)
	background.Wait()
}

func TestShutdownSaysWhatItCut(t *testing.T) {
	taken, proceed := make(chan struct{}), make(chan struct{})
	srv, err := server.New(server.Options{
		DataListen: "127.0.0.1:0", AdminListen: "127.0.0.1:0",
		Router: scripted{claim: func(context.Context) (reservation.ClaimResult, error) {
			close(taken)
			<-proceed
			return reservation.ClaimResult{}, nil
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := &served{t, srv, &http.Client{Transport: &http.Transport{}}}
	defer s.http.CloseIdleConnections()
	var background sync.WaitGroup
	background.Go(func() {
		if code, _, err := s.try("Claim", aClaim); err == nil {
			t.Errorf("a call that was cut has an answer: %d", code)
		}
	})
	<-taken
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := srv.Shutdown(ctx); err == nil || !strings.Contains(err.Error(), "cut before their answer") {
		t.Errorf("a shutdown that cut a call says %v", err)
	}
	background.Wait()
	close(proceed)
}

const goodTokens = `tokens:
  - {name: dashboard, role: viewer, token: 0123456789abcdef-v}
  - {name: anna, role: oncall, token: 0123456789abcdef-o}
`

func TestAdminNeedsATokenWhereItIsOpen(t *testing.T) {
	none := scripted{}
	for addr, refused := range map[string]bool{
		"127.0.0.1:0": false, "[::1]:0": false, "localhost:0": false, "127.9.9.9:0": false,
		"0.0.0.0:0": true, ":0": true, "[::]:0": true, "10.0.0.1:7071": true, "admin.example:7071": true,
	} {
		_, err := server.New(server.Options{Router: none, AdminListen: addr})
		if errors.Is(err, server.ErrOpenAdmin) != refused {
			t.Errorf("admin on %s without tokens: %v, want refused %t", addr, err, refused)
		}
	}
	tokens, err := server.ParseTokens([]byte(goodTokens))
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, server.Options{Router: none, AdminListen: "0.0.0.0:0", Tokens: tokens})
	for _, path := range []string{"/status", "/metrics"} {
		for token, want := range map[string]int{"": 401, "0123456789abcdef": 401, "0123456789abcdef-v": 200, "0123456789abcdef-o": 200} {
			if code, text := s.admin(path, token); code != want {
				t.Errorf("%s with token %q: %d %s, want %d", path, token, code, text, want)
			}
		}
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if code, _ := s.admin(path, ""); code != 200 {
			t.Errorf("%s needs no token, and answered %d", path, code)
		}
	}
}

func TestTokensFilesAreStrict(t *testing.T) {
	for text, want := range map[string]string{
		"":           "not usable",
		"tokens: []": "no token",
		"tokens: [{name: a, role: boss, token: 0123456789abcdef}]":                                                      "the role",
		"tokens: [{name: a, role: viewer, token: short}]":                                                               "too short",
		"tokens: [{role: viewer, token: 0123456789abcdef}]":                                                             "no name",
		"tokens: [{name: a, role: viewer, token: 0123456789abcdef, more: 1}]":                                           "not usable",
		"tokens: [{name: a, name: b, role: viewer, token: 0123456789abcdef}]":                                           "not usable",
		"tokens: [{name: a, role: viewer, token: 0123456789abcdef}]\n---\n{}":                                           "not usable",
		"tokens: [{name: a, role: viewer, token: 0123456789abcdef}, {name: a, role: viewer, token: 0123456789abcdefg}]": "twice",
		"tokens: [{name: a, role: viewer, token: 0123456789abcdef}, {name: b, role: viewer, token: 0123456789abcdef}]":  "twice",
		"tokens: [{name: a, role: viewer, token: \"0123456789abcdef with blanks\"}]":                                    "blanks",
		"roles: {}": "not usable",
	} {
		_, err := server.ParseTokens([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "0123456789abcdef") {
			t.Errorf("%s\n gave %v, want %q and no token", text, err, want)
		}
	}
	name := filepath.Join(t.TempDir(), "tokens.yaml")
	if _, err := server.LoadTokens(name); err == nil {
		t.Error("a file that is not there passed")
	}
	if err := os.WriteFile(name, []byte(goodTokens), 0o600); err != nil {
		t.Fatal(err)
	}
	if tokens, err := server.LoadTokens(name); err != nil || len(tokens) != 2 || tokens[1].Role != server.Oncall {
		t.Errorf("a good file gave %v, %v", tokens, err)
	}
}

// One call more than the bound is answered at once, by itself: those under way are not harmed.
func TestTooManyCallsAtOnce(t *testing.T) {
	const most = 3
	taken, proceed := make(chan struct{}, most), make(chan struct{})
	s := start(t, server.Options{MaxInFlight: most, Router: scripted{claim: func(context.Context) (reservation.ClaimResult, error) {
		taken <- struct{}{}
		<-proceed
		return reservation.ClaimResult{Record: reservation.Record{State: reservation.Claimed}}, nil
	}}})
	var all sync.WaitGroup
	for range most {
		all.Go(func() {
			if code, text, err := s.try("Claim", aClaim); err != nil || code != 200 {
				t.Errorf("a call within the bound: %d %s, %v", code, text, err)
			}
		})
	}
	for range most {
		<-taken
	}
	code, text := s.post("Claim", aClaim)
	if code != 429 || !strings.Contains(text, `"resource_exhausted"`) || !strings.Contains(text, "retry with the same key") {
		t.Errorf("one call more: %d %s", code, text)
	}
	if _, metrics := s.admin("/metrics", ""); !strings.Contains(metrics, `twinhold_api_call_duration_seconds_count{code="resource_exhausted",op="Claim"} 1`) {
		t.Error("it is not counted")
	}
	close(proceed)
	all.Wait()
	s.wants(200, `{"state":"CLAIMED","late":false}`, "Claim", aClaim)
}
