package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/internal/podset/podsettest"
	"github.com/twinhold/twinhold/reservation"
)

// freePorts makes a configuration listen on ports that are free.
func freePorts(yaml []byte) string {
	return strings.NewReplacer("127.0.0.1:7070", "127.0.0.1:0", "127.0.0.1:7071", "127.0.0.1:0").Replace(string(yaml))
}

// process is twinhold serve as a process of its own.
type process struct {
	cmd  *exec.Cmd
	data string // the data API's address
	log  chan string
}

var serving = regexp.MustCompile(`msg=serving data=(\S+) admin=(\S+)`)

func startServe(t *testing.T, config string) *process {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "serve", "--config", config) //nolint:gosec // this test binary
	cmd.Env = append(os.Environ(), asTwinhold+"=1")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: cmd, log: make(chan string, 1)}
	found := make(chan string, 1)
	go func() {
		var all strings.Builder
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			all.WriteString(lines.Text() + "\n")
			if m := serving.FindStringSubmatch(lines.Text()); m != nil {
				found <- m[1]
			}
		}
		close(found)
		p.log <- all.String()
	}()
	p.data = <-found
	if p.data == "" {
		_ = cmd.Wait()
		t.Fatalf("serve did not start:\n%s", <-p.log)
	}
	return p
}

// term ends the process as an orchestrator does, and gives its exit code and log.
func (p *process) term(t *testing.T) (int, string) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	log := <-p.log
	_ = p.cmd.Wait() // the code is in its state
	return p.cmd.ProcessState.ExitCode(), log
}

// buyers reserve, and claim or release every second and third hold, until the router is gone.
type buyers struct {
	http     *http.Client
	url      string
	next     atomic.Int64
	mu       sync.Mutex
	answered map[string]string // the last state that was answered, by reservation
	unsure   map[string]bool   // whose last call got no answer
	all      sync.WaitGroup
}

func (b *buyers) post(method, body string) (map[string]any, error) {
	res, err := b.http.Post(b.url+method, "application/json", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%d %s", res.StatusCode, text)
	}
	var v map[string]any
	return v, json.Unmarshal(text, &v)
}

func (b *buyers) buy() error {
	n := b.next.Add(1)
	v, err := b.post("Reserve", fmt.Sprintf(`{"shopId":"1","idempotencyKey":"buyer-%d","lines":[{"itemId":"1","groupId":"1","quantity":1}],"ttl":"300s"}`, n))
	if err != nil {
		return err
	}
	id, _ := v["reservationId"].(string)
	state, _ := v["state"].(string)
	b.note(id, state, false)
	method := map[int64]string{1: "Claim", 2: "Release"}[n%3]
	if method == "" || state != "HELD" {
		return nil
	}
	v, err = b.post(method, `{"shopId":"1","reservationId":"`+id+`"}`)
	if err == nil {
		state, _ = v["state"].(string)
	}
	b.note(id, state, err != nil)
	return err
}

func (b *buyers) note(id, state string, unsure bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answered[id], b.unsure[id] = state, unsure
}

func (b *buyers) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.answered)
}

// I5, I11: a router that is told to stop under load loses nothing that it answered, and leaves the mirror equal.
func TestSIGTERMUnderLoadLosesNoAnswer(t *testing.T) {
	pods, _ := podsettest.Pods(t, 1)
	set := podsettest.Open(t, pods, podset.Options{})
	pod := set.Pods[0]
	bucket := reservation.Bucket{Shop: 1, Item: 1, Group: 1}
	if _, _, err := pod.Stock(t.Context(), []reservation.Stocking{{Bucket: bucket, Quantity: 150}}); err != nil {
		t.Fatal(err)
	}
	p := startServe(t, configFile(t, freePorts(pods.YAML)))
	b := &buyers{
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}, Timeout: 20 * time.Second},
		url:  "http://" + p.data + "/twinhold.v1.ReservationService/", answered: map[string]string{}, unsure: map[string]bool{},
	}
	defer b.http.CloseIdleConnections()
	enough := make(chan struct{})
	once := sync.OnceFunc(func() { close(enough) })
	for range 12 {
		b.all.Go(func() {
			defer once()
			for b.buy() == nil {
				if b.count() >= 300 {
					once()
				}
			}
		})
	}
	<-enough
	code, log := p.term(t)
	b.all.Wait()
	if code != 0 || !strings.Contains(log, "msg=stopped") || strings.Contains(log, "level=WARN") || strings.Contains(log, "level=ERROR") {
		t.Errorf("exit %d, log:\n%s", code, log)
	}
	if b.count() < 300 {
		t.Fatalf("only %d reservations were answered", b.count())
	}

	rs, ms, err := pod.Inspect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if report := pod.Check(&rs, &ms, true); !report.OK() {
		t.Errorf("the invariants do not hold:\n%s", report)
	}
	kept, mirrored := states(rs), states(ms)
	for id, state := range b.answered {
		if kept[id] != mirrored[id] {
			t.Errorf("%s is %q in Redis and %q in MySQL", id, kept[id], mirrored[id])
		}
		if kept[id] != state && !b.unsure[id] {
			t.Errorf("%s was answered %s and is %q", id, state, kept[id])
		}
	}
	t.Logf("%d answered, %d known", b.count(), len(kept))
}

// What a 503 does not tell its caller, the log tells with the pod.
func TestTheLogSaysWhyACallWasUnavailable(t *testing.T) {
	pods, stack := podsettest.Pods(t, 1)
	p := startServe(t, configFile(t, freePorts(pods.YAML)))
	if err := stack.Redis.Kill(); err != nil {
		t.Fatal(err)
	}
	b := &buyers{http: &http.Client{Transport: &http.Transport{}, Timeout: 20 * time.Second}, url: "http://" + p.data + "/twinhold.v1.ReservationService/"}
	defer b.http.CloseIdleConnections()
	if _, err := b.post("Reserve", `{"shopId":"1","idempotencyKey":"order-17-of-anna","lines":[{"itemId":"1","groupId":"1","quantity":1}]}`); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("a reserve without Redis: %v", err)
	}
	_, log := p.term(t)
	if why := regexp.MustCompile(`level=WARN msg="a call could not be answered" pod=pod-1 op=Reserve shop=1 cause="redis is unavailable: \S`); !why.MatchString(log) || strings.Contains(log, "anna") {
		t.Errorf("the log has no line %s, or a key:\n%s", why, log)
	}
}

func states(s reservation.Snapshot) map[string]string {
	m := map[string]string{}
	for _, r := range s.Records {
		m[r.ID.String()] = strings.ToUpper(r.State.String())
	}
	return m
}

func TestServeRefusesToStart(t *testing.T) {
	pods, _ := podsettest.Pods(t, 1)
	yaml := freePorts(pods.YAML)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	bad := filepath.Join(t.TempDir(), "tokens.yaml")
	if err := os.WriteFile(bad, []byte("tokens: [{name: a, role: viewer, token: hunter2}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	admin := func(with string) string {
		return strings.Replace(yaml, `admin: {listen: "127.0.0.1:0"}`, "admin: "+with, 1)
	}
	for name, c := range map[string]struct{ yaml, want string }{
		"an open admin listener": {admin(`{listen: "0.0.0.0:0"}`), "0.0.0.0:0 is not on loopback, and there are no tokens"},
		"no tokens file":         {admin(`{listen: "127.0.0.1:0", tokens_file: none.yaml}`), "admin.tokens_file: the file is not there"},
		"a bad tokens file":      {admin(`{listen: "127.0.0.1:0", tokens_file: ` + bad + `}`), "too short"},
		"a taken address":        {strings.Replace(yaml, `data:  {listen: "127.0.0.1:0"}`, `data: {listen: "`+taken.Addr().String()+`"}`, 1), "address already in use"},
	} {
		t.Run(name, func(t *testing.T) {
			(&client{t, configFile(t, c.yaml)}).fails(exitFailed, c.want, "serve")
		})
	}
}
