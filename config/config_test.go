package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v4"

	"github.com/twinhold/twinhold/reservation"
)

// env is the environment of all tests: nothing of the process's own.
func env(name string) (string, bool) {
	v, ok := map[string]string{
		"POD1_REDIS_PASSWORD": "s3cret", "POD1_MYSQL_PASSWORD": "s3cret", "SECRET": "s3cret",
		"NESTED": "${SECRET}", "EMPTY": "", "POD": "pod-9",
	}[name]
	return v, ok
}

// minimal is the smallest file that is right; tests append to it, or change a word of it.
const minimal = `version: 1
pods:
  - id: pod-1
    shops: ["1-999"]
    redis: redis://127.0.0.1:6379/0
    mysql: twinhold:s3cret@tcp(127.0.0.1:3306)/pod1
`

func mustParse(t *testing.T, text string) *Config {
	t.Helper()
	c, err := Parse([]byte(text), "twinhold.yaml", env)
	if err != nil {
		t.Fatalf("Parse: %v", err)
	}
	return c
}

func loadFull(t *testing.T) *Config {
	t.Helper()
	c, err := LoadEnv("testdata/full.yaml", env)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// The reference names every key of the schema, and each with its default.
func TestFullReferenceIsWhole(t *testing.T) {
	data, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	r := newReader("testdata/full.yaml", env, func(string) ([]byte, error) { return []byte("x:y@tcp(h:1)/d"), nil })
	doc, ok := r.document(data)
	if !ok {
		t.Fatal(r.mistakes)
	}
	c := Default()
	r.config(doc, &c)
	written := make(map[string]bool)
	for path := range r.at {
		written[unindexed(path)] = true
	}
	for key := range r.known {
		if !written[key] {
			t.Errorf("full.yaml lacks the key %s", key)
		}
	}
	if len(r.known) < 30 {
		t.Errorf("only %d keys are known: the walk is broken", len(r.known))
	}

	full, want := loadFull(t), Default()
	want.Data.TLS = TLS{CertFile: filepath.Join("testdata", "tls", "cert.pem"), KeyFile: filepath.Join("testdata", "tls", "key.pem")}
	want.Admin.TLS, want.Admin.Router = want.Data.TLS, "router-1"
	want.Admin.TokensFile = filepath.Join("testdata", "tokens.yaml")
	opts := cmp.AllowUnexported(Secret{})
	for name, pair := range map[string][2]any{
		"data": {want.Data, full.Data}, "admin": {want.Admin, full.Admin}, "defaults": {want.Defaults, full.Defaults},
		"payment": {want.Payment, full.Payment}, "tuning": {want.Tuning, full.Tuning}, "gates": {want.Gates, full.Gates},
	} {
		if diff := cmp.Diff(pair[0], pair[1], opts); diff != "" {
			t.Errorf("%s: full.yaml shows other values than the defaults (-default +file):\n%s", name, diff)
		}
	}
}

// Every field of Config can be set by the file: each key moved away from its default moves its field.
func TestEveryFieldIsReadFromItsKey(t *testing.T) {
	data, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	other := strings.NewReplacer(
		"127.0.0.1:7070", "127.0.0.1:8070", "127.0.0.1:7071", "127.0.0.1:8071",
		"ttl: 10m", "ttl: 11m", "max_ttl: 1h", "max_ttl: 2h", "retention: 48h", "retention: 49h",
		"pool_size: 1000", "pool_size: 500", "low_water: 0.3", "low_water: 0.4", "late_claim: force", "late_claim: refuse",
		"poll: 200ms", "poll: 300ms", "cooldown: 1h", "cooldown: 3h",
		"timeout: 3m", "timeout: 2m", "window: 4m", "window: 3m", "skew: 5s", "skew: 6s",
		"queue: 8192", "queue: 4096", "workers: 64", "workers: 65", "deadline: 2s", "deadline: 3s",
		"failures: 10", "failures: 11", "open_for: 5s", "open_for: 6s", "probes: 3", "probes: 4", "settle: 2s", "settle: 3s",
		"connections: 64", "connections: 65", "deadline: 1s", "deadline: 600ms", "deadline: 5s", "deadline: 6s",
		"limit: 1s", "limit: 2s", "lock_wait: 2s", "lock_wait: 3s", "attempts: 40", "attempts: 41", "statements: true", "statements: false", "reconcile: 5m", "reconcile: 6m",
		"mirror_connections: 0", "mirror_connections: 9", "refill_connections: 0", "refill_connections: 7",
		"background_connections: 0", "background_connections: 6", "rate: 20000", "rate: 30000", "interval: 1s", "interval: 2s", "batch: 500", "batch: 501", "grace: 30s", "grace: 31s",
		"lease: 10s", "lease: 11s", "large_cart: 1000", "large_cart: 1001",
		"max_in_flight: 4096", "max_in_flight: 4097", "catch_up: 30s", "catch_up: 31s", "catch_up_turn: 1s", "catch_up_turn: 2s",
		"catch_up_rate: 20000", "catch_up_rate: 20001", "freeze_after: 3", "freeze_after: 4",
		"cut_budget: 250ms", "cut_budget: 251ms", "handover_budget: 1s", "handover_budget: 2s", "look_up: 50ms", "look_up: 51ms",
		"min_compared: 1000", "min_compared: 1001", "ratio: 3.0", "ratio: 3.5", "max_queue: 100", "max_queue: 101",
		"evidence_window: 24h", "evidence_window: 25h",
	).Replace(string(data))
	c, err := Parse([]byte(other), "testdata/full.yaml", env)
	if err != nil {
		t.Fatal(err)
	}
	leaves := 0
	var walk func(path string, got, def reflect.Value)
	walk = func(path string, got, def reflect.Value) {
		if got.Kind() == reflect.Struct {
			for i := range got.NumField() {
				walk(path+"."+got.Type().Field(i).Name, got.Field(i), def.Field(i))
			}
			return
		}
		leaves++
		if got.Equal(def) {
			t.Errorf("%s is still %v", path, got)
		}
	}
	def := Default()
	for name, pair := range map[string][2]any{
		"Data": {c.Data, def.Data}, "Admin": {c.Admin, def.Admin}, "Defaults": {c.Defaults, def.Defaults},
		"Payment": {c.Payment, def.Payment}, "Tuning": {c.Tuning, def.Tuning}, "Gates": {c.Gates, def.Gates},
	} {
		walk(name, reflect.ValueOf(pair[0]), reflect.ValueOf(pair[1]))
	}
	if leaves < 30 {
		t.Errorf("only %d fields were looked at", leaves)
	}
}

func TestPods(t *testing.T) {
	c := loadFull(t)
	one, two := c.Pods[0], c.Pods[1]
	if got, want := one.MySQL.Reveal(), "twinhold:s3cret@tcp(127.0.0.1:3306)/pod1"; got != want {
		t.Errorf("mysql of pod-1 = %q, want %q", got, want)
	}
	if got, want := two.Redis.Reveal(), "redis://:s3cret@redis-2:6379/1"; got != want {
		t.Errorf("redis of pod-2 = %q, want %q", got, want)
	}
	if got, want := two.MySQLReplica.Reveal(), "twinhold:s3cret@tcp(mysql-2-replica:3306)/pod2"; got != want {
		t.Errorf("mysql_replica of pod-2 = %q, want %q", got, want)
	}
	if one.DeclaredStage() != reservation.Shadow || two.DeclaredStage() != reservation.Complete || two.MaxStage != reservation.Complete {
		t.Errorf("stages: %v, %v up to %v", one.DeclaredStage(), two.DeclaredStage(), two.MaxStage)
	}
	if got := mustParse(t, minimal).Pods[0]; got.DeclaredStage() != reservation.Legacy || got.MaxStage != reservation.Cutover || !got.MySQLReplica.IsZero() {
		t.Errorf("defaults of a pod: %v", got)
	}
}

func TestDeclaredStages(t *testing.T) {
	for text, want := range map[string]reservation.Stage{
		"    source_of_truth: redis\n    mirror: false\n":                          reservation.Legacy,
		"    source_of_truth: redis\n    mirror: true\n":                           reservation.Shadow,
		"    source_of_truth: mysql\n    mirror: true\n":                           reservation.Cutover,
		"    source_of_truth: mysql\n    mirror: false\n    max_stage: complete\n": reservation.Complete,
	} {
		if got := mustParse(t, minimal+text).Pods[0].DeclaredStage(); got != want {
			t.Errorf("%q declares %v, want %v", text, got, want)
		}
	}
}

func TestPodOf(t *testing.T) {
	c := loadFull(t)
	for shop, want := range map[int64]string{
		1: "pod-1", 999: "pod-1", 1000: "", 1499: "", 1500: "pod-1", 1501: "", 2000: "pod-2", 2999: "pod-2", 3000: "", 0: "", -5: "",
	} {
		got := ""
		if p, ok := c.PodOf(shop); ok {
			got = p.ID
		}
		if got != want {
			t.Errorf("PodOf(%d) = %q, want %q", shop, got, want)
		}
	}
	if _, ok := c.Pod("pod-2"); !ok {
		t.Error("Pod(pod-2) is not found")
	}
	if _, ok := c.Pod("pod-3"); ok {
		t.Error("Pod(pod-3) is found")
	}
}

func TestLimits(t *testing.T) {
	want := reservation.Limits{DefaultTTL: 10 * time.Minute, MaxTTL: time.Hour, MinTTL: 7*time.Minute + 5*time.Second}
	if got := mustParse(t, minimal).Limits(); got != want {
		t.Errorf("Limits() = %+v, want %+v", got, want)
	}
	// The bounds are strict on one side: a ttl just above the sum, a retention that just covers, are right.
	mustParse(t, minimal+"defaults: {ttl: 425001ms, max_ttl: 425001ms, retention: 850001ms}\n")
}

func TestInterpolation(t *testing.T) {
	for text, want := range map[string]string{
		"a${SECRET}b":          "as3cretb",
		"${SECRET}${SECRET}":   "s3crets3cret",
		"${EMPTY}":             "",
		"${NESTED}":            "${SECRET}", // what a variable holds is not searched again
		"$${SECRET}":           "${SECRET}",
		"$SECRET":              "$SECRET",
		"100$":                 "100$",
		"a$${b} ${SECRET} $$c": "a${b} s3cret $$c",
	} {
		c := mustParse(t, strings.Replace(minimal, "twinhold:s3cret@", "twinhold:"+text+"@", 1))
		if got := c.Pods[0].MySQL.Reveal(); got != "twinhold:"+want+"@tcp(127.0.0.1:3306)/pod1" {
			t.Errorf("%q became %q", text, got)
		}
	}
}

// However a configuration is shown, and whatever is wrong with it, no password is in what is shown.
func TestSecretsAreNeverShown(t *testing.T) {
	c := loadFull(t)
	js, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var logged strings.Builder
	slog.New(slog.NewTextHandler(&logged, nil)).Info("x", "redis", c.Pods[0].Redis, "pod", c.Pods[1])
	shown := []string{string(js), logged.String(), fmt.Sprint(c), fmt.Sprintf("%+v %#v %q %x", c, c, c.Pods[0].MySQL, c.Pods[1].MySQL)}
	for _, s := range shown {
		if strings.Contains(s, "s3cret") || strings.Contains(s, fmt.Sprintf("%x", "s3cret")) {
			t.Errorf("a password is shown: %s", s)
		}
	}
	if got := c.Pods[0].Redis.String(); got != "redis://:xxxxx@127.0.0.1:6379/0" {
		t.Errorf("the rest of the address is gone: %s", got)
	}
	for _, dsn := range []string{
		"twinhold:s3cret@tcp(h:1)/d?x=s3cret", "u:a/s3cret@tcp(h)/d", "u:s3cret@x@tcp(h)/d", "s3cret", "u:s3cret@tcp(h)", "u:s3cret@/d?a=s3cret&tls=true",
	} {
		if got := MySQLSecret(dsn).String(); strings.Contains(got, "s3cret") {
			t.Errorf("a password is shown: %s", got)
		}
	}
	for _, u := range []string{
		"redis://u:s3cret@h:1/0", "redis://h?master_name=m&sentinel_password=s3cret&password=s3cret", "s3cret", "redis:s3cret@h", "redis://u:s3c ret%zz@h/s3cret",
	} {
		if got := RedisSecret(u).String(); strings.Contains(got, "s3cret") {
			t.Errorf("a password is shown: %s", got)
		}
	}
	for _, key := range []string{"id", "shops", "redis", "mysql", "source_of_truth", "mirror", "max_stage", "redis_file"} {
		text := "version: 1\ndata: {listen: '${SECRET}'}\ndefaults: {ttl: '${SECRET}', late_claim: '${SECRET}'}\npods:\n  - " + key + ": '${SECRET}'\n"
		if key == "shops" {
			text = strings.Replace(text, "'${SECRET}'\n", "['${SECRET}']\n", 1)
		}
		_, err := Parse([]byte(text), "twinhold.yaml", env)
		if err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", key, err)
		}
	}
}

func TestRedisURLs(t *testing.T) {
	for _, u := range []string{
		"redis://127.0.0.1:6379/0", "rediss://user:pw@host:6380", "redis://host?master_name=main&addr=other:26379", "redis://host:7000?addr=host2:7000&addr=host3:7000",
		"rediss://u:pw@host:26379/2?master_name=main&addr=[::1]:26379&username=app&password=pw&pool_size=20&skip_verify=true",
		"redis://host:7000/0?addr=host:7000&read_timeout=2s", "redis://:a,b@host:6379/0",
	} {
		if !validRedis(u) {
			t.Errorf("%s is refused", u)
		}
	}
	for _, u := range []string{"", "127.0.0.1:6379", "http://host", "redis://host/notanumber", "redis://host?nonsense=1", "redis://h\n"} {
		if validRedis(u) {
			t.Errorf("%q is taken", u)
		}
	}
}

func TestLoadSaysWhatIsWrongWithTheFile(t *testing.T) {
	for path, want := range map[string]string{
		filepath.Join(t.TempDir(), "none.yaml"): "is not there",
		t.TempDir():                             "is not a regular file",
	} {
		_, err := Load(path)
		var e *Error
		if !errors.As(err, &e) || len(e.Mistakes) != 1 || !strings.Contains(err.Error(), want) {
			t.Errorf("Load(%s) = %v, want %q", path, err, want)
		}
	}
	_, err := Load(filepath.Join(t.TempDir(), "none.yaml"))
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v is not ErrNotExist", err)
	}
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range append(files, "testdata/full.yaml") {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	noFile := func(string) ([]byte, error) { return []byte("u:p@tcp(h:1)/d"), nil }
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parse(data, "f.yaml", env, noFile)
		if err == nil {
			if len(c.Pods) == 0 || c.Defaults.TTL <= c.Payment.Sum() || len(c.ranges) == 0 {
				t.Fatalf("taken, and not whole: %+v", c)
			}
			for _, r := range c.ranges {
				if p, ok := c.PodOf(r.Last); !ok || p.ID == "" || p.Redis.IsZero() || p.MySQL.IsZero() {
					t.Fatalf("shop %d has no whole pod", r.Last)
				}
			}
			return
		}
		var e *Error
		if !errors.As(err, &e) || len(e.Mistakes) == 0 || c != nil {
			t.Fatalf("refused without a mistake: %v", err)
		}
		for _, m := range e.Mistakes {
			if m.Line < 1 || m.Column < 1 || m.Message == "" {
				t.Fatalf("a mistake without a place: %+v", m)
			}
		}
	})
}

// The decoder must not refuse a duplicate key by itself: we report it with the others.
func TestDecoderLeavesDuplicatesToUs(t *testing.T) {
	var n yaml.Node
	if err := yaml.Unmarshal([]byte("a: 1\na: 2\n"), &n); err != nil {
		t.Fatal(err)
	}
}
