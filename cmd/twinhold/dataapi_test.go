package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"

	"github.com/twinhold/twinhold/internal/podset/podsettest"
	"github.com/twinhold/twinhold/internal/server"
	"github.com/twinhold/twinhold/reservation"
)

// freeAddr is an address that was free just now: a client has to know it before the router has it.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// knownPorts makes a configuration listen where clients find it. more goes into the data section.
func knownPorts(t *testing.T, yaml []byte, more string) (text, data, admin string) {
	t.Helper()
	data, admin = freeAddr(t), freeAddr(t)
	text = strings.NewReplacer(`"127.0.0.1:7070"`, `"`+data+`"`+more, "127.0.0.1:7071", admin).Replace(string(yaml))
	return text, data, admin
}

var (
	someID   = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}`)
	someTime = regexp.MustCompile(`20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z`)
)

// byHand is everything that a person does to a shop, and what each command printed, with its exit code: ids, times and
// the shop taken out. Every command is run for people and for programs.
func byHand(t *testing.T, config, shop string) []string {
	t.Helper()
	var printed []string
	do := func(args ...string) string {
		t.Helper()
		res := runCLI(t, append(args, "--config", config)...)
		text := strings.Join(args, " ") + "\n= " + strconv.Itoa(res.code) + "\n" + res.out + res.err
		id := someID.FindString(res.out)
		text = someTime.ReplaceAllString(someID.ReplaceAllString(text, "ID"), "TIME")
		text = strings.NewReplacer("--shop "+shop, "--shop S", "bucket "+shop+":", "bucket S:").Replace(text)
		printed = append(printed, text)
		return id
	}
	both := func(args ...string) string {
		t.Helper()
		do(append(args, "--format", "json")...)
		return do(args...)
	}
	bucket := []string{"--shop", shop, "--item", "1", "--group", "1"}
	on := func(args ...string) []string { return append(args, bucket...) }
	both(on("stock", "get")...) // not there yet
	both(append(on("stock", "adjust"), "--delta", "1", "--id", "a0")...)
	both(append(on("stock", "set"), "--quantity", "10")...)
	both(append(on("stock", "set"), "--quantity", "12")...)
	both(append(on("stock", "adjust"), "--delta", "-2", "--id", "a1")...)
	both(append(on("stock", "adjust"), "--delta", "-3", "--id", "a1")...)
	both(append(on("stock", "adjust"), "--delta", "0", "--id", "a2")...)
	id := both("reserve", "--shop", shop, "--key", "k", "--line", "1:1:4")
	both("reserve", "--shop", shop, "--key", "k", "--line", "1:1:5")
	both("reserve", "--shop", shop, "--key", "k2", "--line", "1:1:7")
	both("reserve", "--shop", shop, "--key", "k3", "--line", "2:1:1")
	both("reserve", "--shop", shop, "--key", "k4", "--line", "1:1:0")
	both("reserve", "--shop", shop, "--key", "k4", "--line", "1:1:3000000000")
	both("reserve", "--shop", shop, "--key", "k4", "--line", "1:1:1", "--ttl", "1ms")
	both("reserve", "--shop", shop, "--key", "k4", "--line", "1:1:1", "--ttl", "100h")
	both("reserve", "--shop", shop, "--key", "k4", "--line", "1:1:1", "--ttl=-5s")
	both("reserve", "--shop", shop, "--key", strings.Repeat("k", 256), "--line", "1:1:1")
	both("get", "--shop", shop, id)
	both(append(on("stock", "adjust"), "--delta", "-7", "--id", "a3")...)
	both(append(on("stock", "set"), "--quantity", "3")...)
	both("claim", "--shop", shop, id)
	both("get", "--shop", shop, id)
	both("release", "--shop", shop, id)
	both("get", "--shop", "999", id) // of another shop
	other := both("reserve", "--shop", shop, "--key", "k5", "--line", "1:1:6")
	both(append(on("stock", "adjust"), "--delta", "-1", "--id", "a4", "--force")...)
	both(on("stock", "get")...)
	both("release", "--shop", shop, other)
	both("claim", "--shop", shop, other)
	both("get", "--shop", shop, other)
	both(on("stock", "get")...)
	return printed
}

// calls counts the calls of the data API that the router answered.
func calls(t *testing.T, admin string) int {
	t.Helper()
	res, err := http.Get("http://" + admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, m := range regexp.MustCompile(`(?m)^twinhold_api_call_duration_seconds_count\{.*\} (\d+)$`).FindAllStringSubmatch(string(text), -1) {
		v, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		n += v
	}
	return n
}

// A person's commands say the same through the data API as through the stores.
func TestBothWaysSayTheSame(t *testing.T) {
	pods, _ := podsettest.Pods(t, 1)
	text, _, admin := knownPorts(t, pods.YAML, "")
	config := configFile(t, text)
	throughStores := byHand(t, config, "11")

	p := startServe(t, config)
	throughRouter := byHand(t, config, "22")
	if n := calls(t, admin); n < 40 {
		t.Errorf("only %d calls went through the router", n)
	}
	for i := range throughStores {
		if diff := cmp.Diff(throughStores[i], throughRouter[i]); diff != "" {
			t.Errorf("-through the stores +through the router:\n%s", diff)
		}
	}
	// What needs both stores asks them, also while a router runs.
	before := calls(t, admin)
	c := &client{t, config}
	both := c.json(exitDone, "stock", "get", "--shop", "22", "--item", "1", "--group", "1", "--both")
	c.want(both["mysql"].(map[string]any), "onHand", "5")
	if calls(t, admin) != before {
		t.Error("--both was asked of the router")
	}
	if code, log := p.term(t); code != exitDone {
		t.Errorf("exit %d:\n%s", code, log)
	}
	c.want(c.json(exitDone, "stock", "get", "--shop", "22", "--item", "1", "--group", "1"), "onHand", "5")
}

func TestTheDataAPIIsFoundOverTLS(t *testing.T) {
	pods, _ := podsettest.Pods(t, 1)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	selfMade(t, cert, key, "router.example")
	text, data, admin := knownPorts(t, pods.YAML, `, tls_cert_file: "`+cert+`", tls_key_file: "`+key+`"`)
	config := configFile(t, text)
	p := startServe(t, config)
	c := &client{t, config}
	res := runCLI(t, "stock", "get", "--shop", "1", "--item", "1", "--group", "1", "--config", config)
	if res.code != exitFailed || strings.Contains(res.err, "warning") || calls(t, admin) != 1 {
		t.Errorf("exit %d, %d calls: %s", res.code, calls(t, admin), res.err)
	}
	// The file was renewed and the router not told: it is not trusted, and not needed.
	selfMade(t, cert, key, "router.example")
	c.fails(exitFailed, "what answers at data.listen "+data+" is not asked, but the stores: ", "stock", "get", "--shop", "1", "--item", "1", "--group", "1")
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	renewed := func() bool {
		return !strings.Contains(runCLI(t, "stock", "get", "--shop", "1", "--item", "1", "--group", "1", "--config", config).err, "warning")
	}
	for end := time.Now().Add(20 * time.Second); !renewed(); {
		if time.Now().After(end) {
			t.Fatal("the renewed certificate is not in use after SIGHUP")
		}
	}
	if code, log := p.term(t); code != exitDone {
		t.Errorf("exit %d:\n%s", code, log)
	}
}

// selfMade writes a certificate for a name, and its key.
func selfMade(t *testing.T, certFile, keyFile, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// Whatever else listens there is not asked, and a person is told; a store is never missed for it.
func TestWhatElseListensIsNotAsked(t *testing.T) {
	pods, _ := podsettest.Pods(t, 1)
	for name, answer := range map[string]string{
		"another service": "<html>hello</html>",
		"nothing said":    "",
		"another JSON":    `{"service":"other"}`,
		"another router":  `{"service":"twinhold","pod":"pod-1","stores":"0123456789abcdef0123456789abcdef"}`,
		"without end":     strings.Repeat(" ", 1<<20),
	} {
		foreign := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/pods/pod-1" {
				t.Errorf("%s was asked for %s", name, r.URL.Path)
			}
			_, _ = io.WriteString(w, answer)
		}))
		text := strings.Replace(string(pods.YAML), "127.0.0.1:7070", strings.TrimPrefix(foreign.URL, "http://"), 1)
		(&client{t, configFile(t, text)}).fails(exitFailed, "is not asked, but the stores: it is not a router of this configuration\nerror: unknown bucket 1:1:1",
			"stock", "get", "--shop", "1", "--item", "1", "--group", "1")
		foreign.Close()
	}
}

// A listener that accepts and says nothing costs a second, and no more.
func TestAListenerThatHangsIsLeftAlone(t *testing.T) {
	pods, _ := podsettest.Pods(t, 1)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	text := strings.Replace(string(pods.YAML), "127.0.0.1:7070", l.Addr().String(), 1)
	(&client{t, configFile(t, text)}).fails(exitFailed, "is not asked, but the stores: ", "stock", "get", "--shop", "1", "--item", "1", "--group", "1")
}

func TestWhereAListenerIsReached(t *testing.T) {
	for listen, want := range map[string]string{
		"127.0.0.1:7070": "127.0.0.1:7070", ":7070": "127.0.0.1:7070", "0.0.0.0:7070": "127.0.0.1:7070", "[::]:7070": "[::1]:7070",
		"[::1]:7070": "[::1]:7070", "router.example:7070": "router.example:7070", "127.0.0.1:0": "", "nowhere": "",
	} {
		if got, ok := dialable(listen); got != want || ok != (want != "") {
			t.Errorf("%s is reached at %q, %t, want %q", listen, got, ok, want)
		}
	}
}

func TestAnswersOfTheDataAPIAsErrors(t *testing.T) {
	with := func(code connect.Code, text string, meta ...string) error {
		err := connect.NewError(code, errors.New(text))
		for i := 0; i < len(meta); i += 2 {
			err.Meta().Set(meta[i], meta[i+1])
		}
		return err
	}
	for name, c := range map[string]struct {
		err  error
		code reservation.Code
		text string
	}{
		"a field":            {with(connect.CodeInvalidArgument, "ttl 5s is too short", server.HeaderField, "ttl"), reservation.CodeInvalidArgument, "ttl 5s is too short"},
		"a field, no reason": {with(connect.CodeInvalidArgument, "", server.HeaderField, "ttl"), reservation.CodeInvalidArgument, "ttl "},
		"no field":           {with(connect.CodeInvalidArgument, "what?"), reservation.CodeInvalidArgument, "what?"},
		"a bucket":           {with(connect.CodeNotFound, "unknown bucket", server.HeaderReason, server.ReasonBucket), reservation.CodeNotFound, "unknown bucket"},
		"too many":           {with(connect.CodeResourceExhausted, "too many"), reservation.CodeUnavailable, "too many"},
		"a deadline":         {with(connect.CodeDeadlineExceeded, "late"), reservation.CodeUnavailable, "late"},
		"unknown":            {with(connect.CodeUnknown, "?"), reservation.CodeUnavailable, "?"},
		"internal":           {with(connect.CodeInternal, "log"), reservation.CodeInternal, "log"},
		"no answer in time":  {connect.NewError(connect.CodeDeadlineExceeded, context.DeadlineExceeded), reservation.CodeUnavailable, "the router gave no answer within 10s: retry with the same key"},
		"no answer":          {io.ErrUnexpectedEOF, reservation.CodeUnavailable, "the router gave no answer: unexpected EOF"},
	} {
		err := apiErrorOf(c.err)
		if codeOf(err) != c.code || err.Error() != c.text || hintFor(err) == "" {
			t.Errorf("%s: %s %q, hint %q, want %s %q", name, codeOf(err), err, hintFor(err), c.code, c.text)
		}
	}
	if err := apiErrorOf(with(connect.CodeNotFound, "unknown bucket", server.HeaderReason, server.ReasonBucket)); errors.Is(err, reservation.ErrNotFound) || !isUnknownBucket(err) {
		t.Error("an unknown bucket is no unknown reservation")
	}
}
