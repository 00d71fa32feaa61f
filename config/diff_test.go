package config

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Every key of the schema outside the pods is one that Diff looks at.
func TestDiffLooksAtEveryKey(t *testing.T) {
	data, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	r := newReader("testdata/full.yaml", env, func(string) ([]byte, error) { return nil, nil })
	doc, ok := r.document(data)
	if !ok {
		t.Fatal(r.mistakes)
	}
	c := Default()
	r.config(doc, &c)
	seen := make(map[string]bool)
	for _, k := range keys(&c) {
		seen[k.path] = true
	}
	leaves := 0
	for known := range r.known {
		section := false
		for other := range r.known {
			section = section || strings.HasPrefix(other, known+".")
		}
		if section || known == "version" || strings.HasPrefix(known, "pods") {
			continue
		}
		leaves++
		if !seen[known] {
			t.Errorf("Diff does not look at %s", known)
		}
	}
	if leaves != len(seen) || leaves < 40 {
		t.Errorf("%d keys in the schema, %d in Diff", leaves, len(seen))
	}
}

// change tells where each value stands, so that keys of one type cannot be mistaken for one another.
func TestEveryKeyIsTakenOrNot(t *testing.T) {
	for i, k := range keys(&Config{}) {
		old, next := Default(), Default()
		old.Data.TLS, old.Admin.TLS = TLS{"a", "b"}, TLS{"a", "b"}
		next.Data.TLS, next.Admin.TLS = TLS{"a", "b"}, TLS{"a", "b"}
		v := reflect.ValueOf(keys(&next)[i].value).Elem()
		switch v.Kind() {
		case reflect.String:
			v.SetString("other")
		case reflect.Int, reflect.Int64:
			v.SetInt(v.Int() + 1)
		case reflect.Uint8:
			v.SetUint(v.Uint() + 1)
		case reflect.Bool:
			v.SetBool(!v.Bool())
		case reflect.Float64:
			v.SetFloat(v.Float() + 1)
		default:
			t.Fatalf("%s is a %s", k.path, v.Kind())
		}
		changes := Diff(&old, &next)
		if len(changes) != 1 || changes[0].Path != k.path || changes[0].Takes != k.takes || changes[0].Old == changes[0].New {
			t.Errorf("%s: %v", k.path, changes)
			continue
		}
		want := old
		if k.takes == Now {
			want = next
		}
		if diff := cmp.Diff(want, *Merge(&old, &next), cmp.AllowUnexported(Config{}, Secret{}, ownedRange{})); diff != "" {
			t.Errorf("%s: -want +merged:\n%s", k.path, diff)
		}
	}
}

const twoPods = minimal + `  - id: pod-2
    shops: ["1000-1999"]
    redis: redis://:s3cret@127.0.0.1:6380/0
    mysql: twinhold:s3cret@tcp(127.0.0.1:3306)/pod2
`

func TestDiffOfPods(t *testing.T) {
	replace := func(pairs ...string) string { return strings.NewReplacer(pairs...).Replace(twoPods) }
	for name, c := range map[string]struct {
		next string
		want []string
		pods string // of the merged configuration, each with its shops
	}{
		"nothing": {twoPods, nil, "pod-1:1-999 pod-2:1000-1999"},
		"a new pod": {
			twoPods + strings.NewReplacer("version: 1\npods:\n", "", "pod-1", "pod-3", "1-999", "2000", "/pod1", "/pod3").Replace(minimal),
			[]string{"pods[pod-3]: none -> shops 2000 (taken now)"},
			"pod-1:1-999 pod-2:1000-1999 pod-3:2000",
		},
		"a pod less": {
			minimal,
			[]string{"pods[pod-2]: shops 1000-1999 -> none (taken after a restart): it is served until then"},
			"pod-1:1-999 pod-2:1000-1999",
		},
		"a stage is never taken": {
			replace("    redis: redis://127", "    source_of_truth: mysql\n    mirror: true\n    redis: redis://127"),
			[]string{"pods[pod-1].source_of_truth and mirror: legacy -> cutover (taken by a flip)"},
			"pod-1:1-999 pod-2:1000-1999",
		},
		"addresses": {
			replace("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6399/0", "twinhold:s3cret@tcp(127.0.0.1:3306)/pod2", "twinhold:s3cret@tcp(127.0.0.1:3307)/pod2"),
			[]string{
				"pods[pod-1].redis: redis://127.0.0.1:6379/0 -> redis://127.0.0.1:6399/0 (taken after a restart)",
				"pods[pod-2].mysql: twinhold:xxxxx@tcp(127.0.0.1:3306)/pod2 -> twinhold:xxxxx@tcp(127.0.0.1:3307)/pod2 (taken after a restart)",
			},
			"pod-1:1-999 pod-2:1000-1999",
		},
		"a password": {
			replace("redis://:s3cret@", "redis://:0ther@"),
			[]string{"pods[pod-2].redis: redis://:xxxxx@127.0.0.1:6380/0 -> redis://:xxxxx@127.0.0.1:6380/0 (taken after a restart): only what is not shown differs"},
			"pod-1:1-999 pod-2:1000-1999",
		},
		"max_stage": {
			replace("    redis: redis://127", "    max_stage: complete\n    redis: redis://127"),
			[]string{"pods[pod-1].max_stage: cutover -> complete (taken now)"},
			"pod-1:1-999 pod-2:1000-1999",
		},
		// A shop must not be served by two pods, not for a moment: its stock is in one of them.
		"shops that move to a new pod": {
			replace(`"1000-1999"`, `"1000-1499"`) + strings.NewReplacer("version: 1\npods:\n", "", "pod-1", "pod-3", "1-999", "1500-1999", "/pod1", "/pod3").Replace(minimal),
			[]string{
				"pods[pod-2].shops: 1000-1999 -> 1000-1499 (taken after a restart)",
				"pods[pod-3]: none -> shops 1500-1999 (taken after a restart): shops of it are those of pod pod-2 until then",
			},
			"pod-1:1-999 pod-2:1000-1999",
		},
		"a pod under a new name": {
			replace("pod-2", "pod-9", "1000-1999", "3000"),
			[]string{
				"pods[pod-2]: shops 1000-1999 -> none (taken after a restart): it is served until then",
				"pods[pod-9]: none -> shops 3000 (taken after a restart): its schema is that of pod pod-2 until then",
			},
			"pod-1:1-999 pod-2:1000-1999",
		},
	} {
		old, next := mustParse(t, twoPods), mustParse(t, c.next)
		var got []string
		for _, ch := range Diff(old, next) {
			got = append(got, ch.String())
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		merged := Merge(old, next)
		var pods []string
		for _, p := range merged.Pods {
			pods = append(pods, p.ID+":"+shopsText(p.Shops))
			of, ok := merged.PodOf(p.Shops[0].First)
			if !ok || of.ID != p.ID {
				t.Errorf("%s: PodOf(%d) is %v, want %s", name, p.Shops[0].First, of, p.ID)
			}
		}
		if got := strings.Join(pods, " "); got != c.pods {
			t.Errorf("%s: merged pods %s, want %s", name, got, c.pods)
		}
		if old.Pods[0].Redis != merged.Pods[0].Redis || old.Pods[1].MySQL != merged.Pods[1].MySQL {
			t.Errorf("%s: an address was taken without a restart", name)
		}
	}
}

func TestTLSNeitherBeginsNorEnds(t *testing.T) {
	plain, with := Default(), Default()
	with.Data.TLS = TLS{"cert.pem", "key.pem"}
	for _, c := range [][2]*Config{{&plain, &with}, {&with, &plain}} {
		changes := Diff(c[0], c[1])
		if len(changes) != 2 || changes[0].Takes != AfterRestart || changes[1].Takes != AfterRestart {
			t.Errorf("%v", changes)
		}
		if got := Merge(c[0], c[1]).Data.TLS; got != c[0].Data.TLS {
			t.Errorf("merged %v", got)
		}
	}
}

func TestReload(t *testing.T) {
	file := filepath.Join(t.TempDir(), "twinhold.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(minimal)
	now, err := LoadEnv(file, env)
	if err != nil {
		t.Fatal(err)
	}
	var (
		logged  bytes.Buffer
		applied []*Config
		fail    error
	)
	r := NewReloader(now, file, env, slog.New(slog.NewTextHandler(&logged, nil)), func(_ context.Context, next *Config, _ []Change) error {
		applied = append(applied, next)
		return fail
	})

	write(strings.NewReplacer("pod-1", "Pod", "redis://", "radis://:s3cret@").Replace(minimal) + "colour: red\n")
	r.Reload(t.Context())
	if r.Current() != now || len(applied) != 0 {
		t.Error("a file with mistakes was taken")
	}
	for _, want := range []string{"the old one stays", ":3:9: pods[0].id", ":5:12: pods[0].redis", `unknown key \"colour\"`} {
		if !strings.Contains(logged.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, logged.String())
		}
	}

	write(minimal + "tuning: {look_up: 60ms}\ndata: {listen: \"127.0.0.1:9999\"}\n")
	fail = errors.New("planted")
	r.Reload(t.Context())
	if r.Current() != now || len(applied) != 1 {
		t.Error("what could not be applied was taken")
	}
	fail = nil
	logged.Reset()
	r.Reload(t.Context())
	if c := r.Current(); len(applied) != 2 || c != applied[1] || show(c.Tuning.LookUp) != "60ms" || c.Data.Listen != now.Data.Listen {
		t.Errorf("it runs by %+v", c)
	}
	for _, want := range []string{"tuning.look_up", "taken=now", "data.listen", `taken="after a restart"`, "changes=2"} {
		if !strings.Contains(logged.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, logged.String())
		}
	}
	if strings.Contains(logged.String(), "s3cret") {
		t.Error("the log holds a password")
	}
	// The listener still differs from the file, and is told again.
	logged.Reset()
	r.Reload(t.Context())
	if !strings.Contains(logged.String(), "changes=1") {
		t.Errorf("what waits for a restart is not told again:\n%s", logged.String())
	}
}
