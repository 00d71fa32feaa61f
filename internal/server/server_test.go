package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/internal/podset/podsettest"
	"github.com/twinhold/twinhold/internal/server"
	"github.com/twinhold/twinhold/reservation"
)

func TestMain(m *testing.M) { devtest.Main(m, devtest.Needs{}) }

// served is a server, and a client that speaks HTTP+JSON to it as anybody could.
type served struct {
	t    *testing.T
	srv  *server.Server
	http *http.Client
}

// start serves; port 0 is filled in where no address is given.
func start(t *testing.T, opt server.Options) *served {
	t.Helper()
	if opt.DataListen == "" {
		opt.DataListen = "127.0.0.1:0"
	}
	if opt.AdminListen == "" {
		opt.AdminListen = "127.0.0.1:0"
	}
	srv, err := server.New(opt)
	if err != nil {
		t.Fatal(err)
	}
	if err := srv.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := &served{t, srv, &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 32}, Timeout: 30 * time.Second}}
	t.Cleanup(func() {
		s.http.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := srv.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	return s
}

// onPods serves two pods on private servers. Pod 1 has shops 1 to 1000, pod 2 those to 2000.
func onPods(t *testing.T) (*served, *podset.Set, *devstack.Stack) {
	t.Helper()
	pods, stack := podsettest.Pods(t, 2)
	set := podsettest.Open(t, pods, podset.Options{})
	opt := server.Options{Router: set.Router}
	for _, p := range set.Pods {
		opt.Pods = append(opt.Pods, shown(p))
	}
	set.Router.Start()
	return start(t, opt), set, stack
}

// shown is a pod as serve shows it.
func shown(p *podset.Pod) server.Pod {
	return server.Pod{
		ID: p.Config.ID, Stores: p.Config.StoresID(), Redis: p.Redis, MySQL: p.MySQL,
		State: func() server.State {
			s := p.Router.State()
			return server.State{
				Stamp: s.Stamp, Cut: s.Cut, Why: s.Why, Suspect: s.Suspect, RedisOK: s.RedisOK, MySQLOK: s.MySQLOK,
				Frozen: s.Frozen, Killed: s.Killed, Latch: s.Latch,
			}
		},
		Mirror: func() (int, string) {
			if q := p.Router.Queue(); q != nil {
				return q.Depth(), q.Breaker()
			}
			return 0, "none"
		},
	}
}

func stock(t *testing.T, p *podset.Pod, shop, item, quantity int64) {
	t.Helper()
	s := []reservation.Stocking{{Bucket: reservation.Bucket{Shop: shop, Item: item, Group: 1}, Quantity: quantity}}
	if _, _, err := p.Stock(t.Context(), s); err != nil {
		t.Fatal(err)
	}
}

// post sends a body as it is and gives the status and the answer as it came.
func (s *served) post(method, body string) (int, string) {
	s.t.Helper()
	code, text, err := s.try(method, body)
	if err != nil {
		s.t.Fatal(err)
	}
	return code, text
}

func (s *served) try(method, body string) (int, string, error) {
	url := "http://" + s.srv.DataAddr() + "/twinhold.v1.ReservationService/" + method
	res, err := s.http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, string(text), err
}

var (
	anID   = regexp.MustCompile(`"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"`)
	aTime  = regexp.MustCompile(`"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3,6})?Z"`)
	anyMsg = regexp.MustCompile(`"message":"(?:[^"\\]|\\.)+"`)
)

// golden takes out what differs from run to run.
func golden(text string) string {
	text = anID.ReplaceAllString(text, `"ID"`)
	text = aTime.ReplaceAllString(text, `"TIME"`)
	return anyMsg.ReplaceAllString(text, `"message":"TEXT"`)
}

// wants posts and compares the status and the whole answer.
func (s *served) wants(code int, want, method, body string) string {
	s.t.Helper()
	got, text := s.post(method, body)
	if got != code || golden(text) != want {
		s.t.Errorf("%s %.200s:\n got %d %s\nwant %d %s", method, body, got, text, code, want)
	}
	return text
}

func field(t *testing.T, text, name string) string {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	s, ok := v[name].(string)
	if !ok {
		t.Fatalf("%s has no %s", text, name)
	}
	return s
}

// admin asks the admin listener.
func (s *served) admin(path, token string) (int, string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://"+s.srv.AdminAddr()+path, http.NoBody)
	if err != nil {
		s.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
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
