package server_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	twinholdv1 "github.com/twinhold/twinhold/api/twinhold/v1"
	"github.com/twinhold/twinhold/api/twinhold/v1/twinholdv1connect"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/internal/podset"
)

// Each part of this test has its own items: they share two pods, so that servers are started once.
func TestDataAPI(t *testing.T) {
	s, set, stack := onPods(t)
	for name, part := range map[string]func(t *testing.T, s *served, p *podset.Pod){
		"life": life, "rejection": rejection, "codes": codes, "bad input": badInput,
		"gRPC": overGRPC, "gRPC-Web": overGRPCWeb, "one key at once": oneKeyAtOnce, "force": forced, "admin": adminAnswers,
	} {
		t.Run(name, func(t *testing.T) { part(t, &served{t, s.srv, s.http}, set.Pods[0]) })
	}
	if _, err := set.Pods[0].Quiesce(t.Context()); err != nil {
		t.Fatal(err)
	}
	rs, ms, err := set.Pods[0].Inspect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if report := set.Pods[0].Check(&rs, &ms, true); !report.OK() {
		t.Errorf("the invariants do not hold:\n%s", report)
	}

	t.Run("Redis stopped", func(t *testing.T) {
		s := &served{t, s.srv, s.http}
		if err := stack.Redis.Pause(); err != nil {
			t.Fatal(err)
		}
		resume := sync.OnceFunc(func() {
			if err := stack.Redis.Resume(); err != nil {
				t.Error(err)
			}
		})
		defer resume()
		code, text := s.admin("/readyz", "")
		if want := `{"ready":false,"draining":false,"pods":[{"pod":"pod-1","ready":false,"reason":"redis does not answer"},{"pod":"pod-2","ready":false,"reason":"redis does not answer"}]}`; code != 503 || text != want {
			t.Errorf("readiness with Redis stopped: %d %s", code, text)
		}
		if code, text := s.admin("/healthz", ""); code != 200 {
			t.Errorf("health with Redis stopped: %d %s", code, text)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.srv.DataAddr()+"/twinhold.v1.ReservationService/Reserve",
			strings.NewReader(`{"shopId":"1","idempotencyKey":"stopped","lines":[{"itemId":"1","groupId":"1","quantity":1}]}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Connect-Timeout-Ms", "300")
		res, err := s.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("reserve with Redis stopped: %d, want 503", res.StatusCode)
		}
		resume()
		devtest.Until(t, "the router is ready once Redis runs again", func() bool {
			code, _ := s.admin("/readyz", "")
			return code == 200
		})
	})
}

func life(t *testing.T, s *served, p *podset.Pod) {
	stock(t, p, 1, 1001, 10)
	const request = `{"shopId":"1","idempotencyKey":"k","lines":[{"itemId":"1001","groupId":"1","quantity":2}],"ttl":"600s"}`
	granted := `{"reservationId":"ID","outcome":"GRANTED","state":"HELD","expiresAt":"TIME","decidedBy":"redis","epoch":"1","replayed":false}`
	first := s.wants(200, granted, "Reserve", request)
	again := s.wants(200, strings.Replace(granted, "false", "true", 1), "Reserve", request)
	id := field(t, first, "reservationId")
	if field(t, again, "reservationId") != id || field(t, again, "expiresAt") != field(t, first, "expiresAt") {
		t.Errorf("a replay answers %s after %s", again, first)
	}
	byID := `{"shopId":"1","reservationId":"` + id + `"}`
	bucket := `{"shopId":"1","itemId":"1001","groupId":"1"}`
	s.wants(200, `{"reservationId":"ID","state":"HELD","expiresAt":"TIME","decidedBy":"redis","epoch":"1","lines":[{"itemId":"1001","groupId":"1","quantity":2}]}`, "GetReservation", byID)
	s.wants(200, `{"available":"8","held":"2","onHand":"10","truth":"redis"}`, "GetAvailability", bucket)
	s.wants(200, `{"state":"CLAIMED","late":false}`, "Claim", byID)
	s.wants(200, `{"state":"CLAIMED","late":false}`, "Claim", byID)
	s.wants(200, `{"available":"8","held":"0","onHand":"8","truth":"redis"}`, "GetAvailability", bucket)
	s.wants(400, `{"code":"failed_precondition","message":"TEXT"}`, "Release", byID)
	s.wants(200, strings.NewReplacer("HELD", "CLAIMED", "false", "true").Replace(granted), "Reserve", request)

	second := field(t, s.wants(200, granted, "Reserve", strings.Replace(request, `"k"`, `"k2"`, 1)), "reservationId")
	byID = `{"shopId":"1","reservationId":"` + second + `"}`
	s.wants(200, `{"reservationId":"ID","state":"RELEASED","replayed":false}`, "Release", byID)
	s.wants(200, `{"reservationId":"ID","state":"RELEASED","replayed":true}`, "Release", byID)
	s.wants(400, `{"code":"failed_precondition","message":"TEXT"}`, "Claim", byID)

	adjust := `{"shopId":"1","itemId":"1001","groupId":"1","delta":"5","adjustmentId":"a"}`
	s.wants(200, `{"onHand":"13","replayed":false}`, "AdjustStock", adjust)
	s.wants(200, `{"onHand":"13","replayed":true}`, "AdjustStock", adjust)
	s.wants(409, `{"code":"already_exists","message":"TEXT"}`, "AdjustStock", strings.Replace(adjust, `"5"`, `"6"`, 1))
	s.wants(400, `{"code":"failed_precondition","message":"TEXT"}`, "AdjustStock", strings.NewReplacer(`"5"`, `"-14"`, `"a"`, `"b"`).Replace(adjust))
	s.wants(200, `{"onHand":"0","replayed":false}`, "AdjustStock", strings.NewReplacer(`"5"`, `"-13"`, `"a"`, `"c"`).Replace(adjust))
	s.wants(200, `{"available":"0","held":"0","onHand":"0","truth":"redis"}`, "GetAvailability", bucket)
}

func rejection(t *testing.T, s *served, p *podset.Pod) {
	stock(t, p, 1, 2001, 3)
	stock(t, p, 1, 2002, 0)
	rejected := `{"reservationId":"ID","outcome":"REJECTED","state":"REJECTED","expiresAt":"TIME","decidedBy":"redis","epoch":"1","replayed":false,"shortages":[{"itemId":"2002","groupId":"1","requested":2,"available":0}]}`
	request := `{"shopId":1,"idempotencyKey":"r","lines":[{"itemId":2001,"groupId":1,"quantity":1},{"itemId":2002,"groupId":1,"quantity":2}]}`
	id := field(t, s.wants(200, rejected, "Reserve", request), "reservationId")
	s.wants(200, strings.Replace(rejected, "false", "true", 1), "Reserve", request)
	s.wants(400, `{"code":"failed_precondition","message":"TEXT"}`, "Claim", `{"shopId":"1","reservationId":"`+id+`"}`)
	s.wants(200, `{"available":"3","held":"0","onHand":"3","truth":"redis"}`, "GetAvailability", `{"shopId":"1","itemId":"2001","groupId":"1"}`)
}

// A forced write-off goes below what is promised, down to what is on hand and not below it.
func forced(t *testing.T, s *served, p *podset.Pod) {
	stock(t, p, 2, 8001, 5)
	request := `{"shopId":"2","idempotencyKey":"f","lines":[{"itemId":"8001","groupId":"1","quantity":4}]}`
	id := field(t, s.wants(200, `{"reservationId":"ID","outcome":"GRANTED","state":"HELD","expiresAt":"TIME","decidedBy":"redis","epoch":"1","replayed":false}`, "Reserve", request), "reservationId")
	adjust := func(id, more string) string {
		return `{"shopId":"2","itemId":"8001","groupId":"1","delta":"-3","adjustmentId":"` + id + `"` + more + `}`
	}
	s.wants(400, `{"code":"failed_precondition","message":"TEXT"}`, "AdjustStock", adjust("f1", ""))
	s.wants(400, `{"code":"failed_precondition","message":"TEXT"}`, "AdjustStock", adjust("f1", `,"force":false`))
	s.wants(200, `{"onHand":"2","replayed":false}`, "AdjustStock", adjust("f1", `,"force":true`))
	s.wants(200, `{"onHand":"2","replayed":true}`, "AdjustStock", adjust("f1", `,"force":true`))
	s.wants(200, `{"available":"-2","held":"4","onHand":"2","truth":"redis"}`, "GetAvailability", `{"shopId":"2","itemId":"8001","groupId":"1"}`)
	s.wants(400, `{"code":"failed_precondition","message":"TEXT"}`, "AdjustStock", adjust("f2", `,"force":true`))
	s.wants(200, `{"reservationId":"ID","state":"RELEASED","replayed":false}`, "Release", `{"shopId":"2","reservationId":"`+id+`"}`)
}

func codes(t *testing.T, s *served, p *podset.Pod) {
	stock(t, p, 1, 3001, 3)
	request := `{"shopId":"1","idempotencyKey":"c","lines":[{"itemId":"3001","groupId":"1","quantity":1}]}`
	_, text := s.post("Reserve", request)
	id := field(t, text, "reservationId")
	for _, c := range []struct {
		status             int
		code, method, body string
	}{
		{409, "already_exists", "Reserve", strings.Replace(request, `"quantity":1`, `"quantity":2`, 1)},
		{404, "not_found", "Reserve", `{"shopId":"1","idempotencyKey":"n","lines":[{"itemId":"3999","groupId":"1","quantity":1}]}`},
		{404, "not_found", "GetReservation", `{"shopId":"2","reservationId":"` + id + `"}`},
		{404, "not_found", "GetReservation", `{"shopId":"1001","reservationId":"` + id + `"}`},
		{404, "not_found", "Claim", `{"shopId":"2","reservationId":"` + id + `"}`},
		{404, "not_found", "Release", `{"shopId":"1","reservationId":"0198f2a0-7c1e-7abc-8def-0123456789ab"}`},
		{404, "not_found", "GetAvailability", `{"shopId":"1","itemId":"3999","groupId":"1"}`},
		{404, "not_found", "AdjustStock", `{"shopId":"1","itemId":"3999","groupId":"1","delta":"1","adjustmentId":"x"}`},
		{400, "invalid_argument", "GetReservation", `{"shopId":"5000","reservationId":"` + id + `"}`},
	} {
		s.wants(c.status, `{"code":"`+c.code+`","message":"TEXT"}`, c.method, c.body)
	}
}

func badInput(t *testing.T, s *served, p *podset.Pod) {
	stock(t, p, 1, 4001, 5)
	reserve := func(key, lines, more string) string {
		return `{"shopId":"1","idempotencyKey":"` + key + `","lines":` + lines + more + `}`
	}
	line := func(q string) string { return `[{"itemId":"4001","groupId":"1","quantity":` + q + `}]` }
	many := strings.TrimSuffix(strings.Repeat(`{"itemId":"4001","groupId":"1","quantity":1},`, 1001), ",")
	for _, body := range []string{
		``, `null`, `[]`, `{`, `"x"`, `{}`, reserve("b", line("1"), "") + "x",
		reserve("b", line("1.5"), ""), reserve("b", line("null"), ""), reserve("b", line("2147483648"), ""), reserve("b", line("0"), ""),
		reserve("b", line("-1"), ""), reserve("b", line(`"many"`), ""), reserve("b", line("1e10"), ""), reserve("b", line("true"), ""),
		reserve("b", `[{"itemId":"4001","groupId":"1","qty":1}]`, ""), reserve("b", line("1"), `,"tll":"60s"`), reserve("b", line("1"), `,"shopId":"2"`),
		reserve("b", `[]`, ""), reserve("b", `[null]`, ""), reserve("b", `null`, ""), reserve("b", "["+many+"]", ""),
		reserve("", line("1"), ""), reserve(strings.Repeat("k", 256), line("1"), ""),
		reserve("b", line("1"), `,"ttl":"0s"`), reserve("b", line("1"), `,"ttl":"-5s"`), reserve("b", line("1"), `,"ttl":"1s"`),
		reserve("b", line("1"), `,"ttl":"2h"`), reserve("b", line("1"), `,"ttl":600`), reserve("b", line("1"), `,"ttl":"315576000000s"`),
		reserve("b", `[{"itemId":"4001","groupId":"1","quantity":2147483647},{"itemId":"4001","groupId":"1","quantity":1}]`, ""),
		reserve("b", `[{"itemId":"9223372036854775808","groupId":"1","quantity":1}]`, ""), reserve("b", `[{"itemId":"0","groupId":"1","quantity":1}]`, ""),
		strings.Replace(reserve("b", line("1"), ""), `"shopId":"1"`, `"shopId":"-1"`, 1),
	} {
		s.wants(400, `{"code":"invalid_argument","message":"TEXT"}`, "Reserve", body)
	}
	for method, body := range map[string]string{
		"Claim": `{"shopId":"1","reservationId":"x"}`, "Release": `{"shopId":"1"}`, "GetReservation": `{"reservationId":"0198f2a0-7c1e-7abc-8def-0123456789ab"}`,
		"GetAvailability": `{"shopId":"1","itemId":"4001"}`, "AdjustStock": `{"shopId":"1","itemId":"4001","groupId":"1","delta":"0","adjustmentId":"x"}`,
	} {
		s.wants(400, `{"code":"invalid_argument","message":"TEXT"}`, method, body)
	}
	s.wants(429, `{"code":"resource_exhausted","message":"TEXT"}`, "Reserve", reserve(strings.Repeat("k", 1<<20), line("1"), ""))
	// None of it took anything or used the key up.
	s.wants(200, `{"available":"5","held":"0","onHand":"5","truth":"redis"}`, "GetAvailability", `{"shopId":"1","itemId":"4001","groupId":"1"}`)
	s.wants(200, `{"reservationId":"ID","outcome":"GRANTED","state":"HELD","expiresAt":"TIME","decidedBy":"redis","epoch":"1","replayed":false}`, "Reserve", reserve("b", line("1"), ""))
}

// h2c speaks cleartext HTTP/2.
func h2c(t *testing.T) *http.Client {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	c := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

func overGRPC(t *testing.T, s *served, p *podset.Pod) {
	stock(t, p, 1, 5001, 4)
	calls(t, twinholdv1connect.NewReservationServiceClient(h2c(t), "http://"+s.srv.DataAddr(), connect.WithGRPC()), 5001)
}

func overGRPCWeb(t *testing.T, s *served, p *podset.Pod) {
	stock(t, p, 1, 6001, 4)
	calls(t, twinholdv1connect.NewReservationServiceClient(s.http, "http://"+s.srv.DataAddr(), connect.WithGRPCWeb()), 6001)
}

func calls(t *testing.T, c twinholdv1connect.ReservationServiceClient, item int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req := &twinholdv1.ReserveRequest{
		ShopId: 1, IdempotencyKey: fmt.Sprint("rpc-", item), Ttl: durationpb.New(time.Minute),
		Lines: []*twinholdv1.Line{{ItemId: item, GroupId: 1, Quantity: 3}},
	}
	res, err := c.Reserve(ctx, connect.NewRequest(req))
	if err != nil {
		t.Fatal(err)
	}
	if res.Msg.GetOutcome() != twinholdv1.ReserveResponse_GRANTED || res.Msg.GetState() != twinholdv1.State_HELD || res.Msg.GetDecidedBy() != "redis" || res.Msg.GetEpoch() != 1 {
		t.Errorf("reserve answered %v", res.Msg)
	}
	av, err := c.GetAvailability(ctx, connect.NewRequest(&twinholdv1.GetAvailabilityRequest{ShopId: 1, ItemId: item, GroupId: 1}))
	if err != nil || av.Msg.GetAvailable() != 1 || av.Msg.GetHeld() != 3 {
		t.Errorf("availability: %v, %v", av, err)
	}
	claim, err := c.Claim(ctx, connect.NewRequest(&twinholdv1.ClaimRequest{ShopId: 1, ReservationId: res.Msg.GetReservationId()}))
	if err != nil || claim.Msg.GetState() != twinholdv1.State_CLAIMED || claim.Msg.GetLate() {
		t.Errorf("claim: %v, %v", claim, err)
	}
	_, err = c.Release(ctx, connect.NewRequest(&twinholdv1.ReleaseRequest{ShopId: 1, ReservationId: res.Msg.GetReservationId()}))
	if connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("release of a claimed one: %v", err)
	}
	req.Lines[0].Quantity = 0
	if _, err = c.Reserve(ctx, connect.NewRequest(req)); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("a quantity of 0: %v", err)
	}
}

// I9: callers that send the same key at once get one answer.
func oneKeyAtOnce(t *testing.T, s *served, p *podset.Pod) {
	stock(t, p, 1, 7001, 100)
	const callers = 16
	answers := make([]string, callers)
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			code, text, err := s.try("Reserve", `{"shopId":"1","idempotencyKey":"same","lines":[{"itemId":"7001","groupId":"1","quantity":7}]}`)
			if err != nil || code != 200 {
				t.Errorf("%d %s, %v", code, text, err)
			}
			answers[i] = text
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	fresh := 0
	for _, a := range answers {
		if field(t, a, "reservationId") != field(t, answers[0], "reservationId") {
			t.Errorf("two answers for one key: %s and %s", a, answers[0])
		}
		if strings.Contains(a, `"replayed":false`) {
			fresh++
		}
	}
	if fresh != 1 {
		t.Errorf("%d answers say that they are the first, want 1", fresh)
	}
	s.wants(200, `{"available":"93","held":"7","onHand":"100","truth":"redis"}`, "GetAvailability", `{"shopId":"1","itemId":"7001","groupId":"1"}`)
}

func adminAnswers(t *testing.T, s *served, p *podset.Pod) {
	if err := p.Router.Queue().Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.post("Claim", `{"shopId":"1","reservationId":"x"}`)
	for path, want := range map[string]string{
		"/healthz": `{"ok":true}`,
		"/readyz":  `{"ready":true,"draining":false,"pods":[{"pod":"pod-1","ready":true},{"pod":"pod-2","ready":true}]}`,
		"/status": `{"pods":[{"pod":"pod-1","stage":"shadow","epoch":1,"truth":"redis","queue":0,"breaker":"closed"},` +
			`{"pod":"pod-2","stage":"shadow","epoch":1,"truth":"redis","queue":0,"breaker":"closed"}]}`,
	} {
		if code, text := s.admin(path, ""); code != 200 || text != want {
			t.Errorf("%s: %d %s, want %s", path, code, text, want)
		}
	}
	if code, text := s.admin("/metrics", ""); code != 200 || !strings.Contains(text, `twinhold_api_call_duration_seconds_count{code="invalid_argument",op="Claim"}`) {
		t.Errorf("/metrics: %d %s", code, text)
	}
	if code, _ := s.admin("/nothing", ""); code != 404 {
		t.Errorf("an unknown path: %d", code)
	}
}
