package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const goodConfig = `version: 1
pods:
  - id: pod-1
    shops: ["1-999", "1500"]
    redis: redis://:${PW}@127.0.0.1:6379/0
    mysql: twinhold:${PW}@tcp(127.0.0.1:3306)/pod1
    mirror: true
`

const badConfig = `version: 1
defaults: {ttl: 5m}
pods:
  - id: Pod
    shops: ["1-999"]
    redis: redis://127.0.0.1:6379/0
    mysql: twinhold:${UNSET}@tcp(127.0.0.1:3306)/pod1
`

func configFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "twinhold.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// result is what a command line left behind.
type result struct {
	code     int
	out, err string
}

func runCLI(t *testing.T, args ...string) result {
	t.Helper()
	var out, errs bytes.Buffer
	getenv := func(name string) (string, bool) {
		if name == "PW" {
			return "s3cret", true
		}
		return "", false
	}
	code := run(context.Background(), args, streams{out: &out, err: &errs}, getenv)
	return result{code, out.String(), errs.String()}
}

// Each line is one command line, its exit code, and what must stand on stdout and stderr; "" stands for nothing at all.
func TestCommandLines(t *testing.T) {
	good, bad := configFile(t, goodConfig), configFile(t, badConfig)
	none := filepath.Join(t.TempDir(), "none.yaml")
	for name, tc := range map[string]struct {
		args     []string
		code     int
		out, err []string
	}{
		"check a good file": {
			[]string{"config", "check", "--config", good},
			exitDone,
			[]string{"pod-1", "1-999,1500", "declares shadow", "redis://:xxxxx@127.0.0.1:6379/0", "ok, 1 pod\n"},
			nil,
		},
		"check a bad file": {
			[]string{"config", "check", "--config", bad},
			exitFailed,
			[]string{bad + ":2:17: defaults.ttl: 5m", "= 7m5s", bad + ":4:9: pods[0].id", bad + ":7:12: pods[0].mysql: the environment variable UNSET"},
			[]string{"error: " + bad + " has 3 mistakes\n", "\nhint: mend"},
		},
		"check no file": {
			[]string{"config", "check", "--config", none},
			exitFailed,
			[]string{none + ": is not there"},
			[]string{"has 1 mistake\n", "\nhint: "},
		},
		"the flag may come first": {[]string{"--config", good, "config", "check"}, exitDone, []string{"ok, 1 pod"}, nil},
		"unknown flag": {
			[]string{"config", "check", "--confg", good},
			exitFailed, nil,
			[]string{"error: unknown flag: --confg\n", "hint: see twinhold config check --help\n"},
		},
		"flag without its value": {
			[]string{"config", "check", "--config"},
			exitFailed, nil,
			[]string{"error: flag needs an argument: --config\n", "hint: see twinhold config check --help\n"},
		},
		"unknown format": {
			[]string{"config", "check", "--format", "xml"}, exitFailed, nil, []string{"use text or json", "hint: see "},
		},
		"unknown command": {
			[]string{"confgi"}, exitFailed, nil, []string{`error: unknown command "confgi" for "twinhold"`, `hint: did you mean "twinhold config"?`},
		},
		"unknown command far from any": {
			[]string{"zzzzzzzz"}, exitFailed, nil, []string{`unknown command "zzzzzzzz"`, "hint: see twinhold --help"},
		},
		"unknown command below": {
			[]string{"config", "zzzzzzzz"}, exitFailed, nil, []string{`unknown command "zzzzzzzz" for "twinhold config"`, "hint: see twinhold config --help"},
		},
		"argument too many": {
			[]string{"config", "check", good}, exitFailed, nil, []string{"takes no argument", "hint: see twinhold config check --help"},
		},
		"nothing at all": {nil, exitDone, []string{"Usage:", "Available Commands:", "config"}, nil},
		"help":           {[]string{"--help"}, exitDone, []string{"Examples:", "--config", "--format"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := runCLI(t, tc.args...)
			if got.code != tc.code {
				t.Errorf("exit %d, want %d", got.code, tc.code)
			}
			contains(t, "stdout", got.out, tc.out)
			contains(t, "stderr", got.err, tc.err)
			if strings.Contains(got.out+got.err, "s3cret") {
				t.Errorf("a password is shown:\n%s%s", got.out, got.err)
			}
		})
	}
}

func contains(t *testing.T, where, got string, want []string) {
	t.Helper()
	if len(want) == 0 && got != "" {
		t.Errorf("%s holds %q, want nothing", where, got)
	}
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("%s lacks %q:\n%s", where, w, got)
		}
	}
}

func TestConfigCheckJSON(t *testing.T) {
	var got configResult
	r := runCLI(t, "config", "check", "--format", "json", "--config", configFile(t, goodConfig))
	if err := json.Unmarshal([]byte(r.out), &got); err != nil || r.code != exitDone {
		t.Fatalf("exit %d, %v: %s", r.code, err, r.out)
	}
	if !got.OK || len(got.Pods) != 1 || got.Pods[0].DeclaredStage != "shadow" || strings.Contains(r.out, "s3cret") {
		t.Errorf("%+v", got)
	}
	r = runCLI(t, "config", "check", "--format", "json", "--config", configFile(t, badConfig))
	got = configResult{}
	if err := json.Unmarshal([]byte(r.out), &got); err != nil || r.code != exitFailed {
		t.Fatalf("exit %d, %v: %s", r.code, err, r.out)
	}
	if got.OK || len(got.Mistakes) != 3 || got.Mistakes[0].Line != 2 || got.Mistakes[0].Column != 17 || got.Mistakes[0].Path != "defaults.ttl" {
		t.Errorf("%+v", got)
	}
}

// Every command has a help with an example; every error ends with a hint.
func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	var out, errs bytes.Buffer
	a := &app{streams: streams{&out, &errs}, format: formatText}
	seen := 0
	pending := [][]string{{}}
	for len(pending) > 0 {
		path := pending[0]
		pending = pending[1:]
		cmd, _, err := newRootCmd(a).Find(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, sub := range cmd.Commands() {
			if !sub.Hidden && sub.Name() != "completion" && sub.Name() != "help" {
				pending = append(pending, append(append([]string{}, path...), sub.Name()))
			}
		}
		seen++
		r := runCLI(t, append(path, "--help")...)
		_, example, _ := strings.Cut(r.out, "Examples:\n")
		example, _, _ = strings.Cut(example, "\n\n")
		if r.code != exitDone || !strings.Contains(example, strings.TrimSpace("twinhold "+strings.Join(path, " "))) || r.err != "" {
			t.Errorf("twinhold %s --help: exit %d, stderr %q, no example in:\n%s", strings.Join(path, " "), r.code, r.err, r.out)
		}
		r = runCLI(t, append(path, "--no-such-flag")...)
		lines := strings.Split(strings.TrimSpace(r.err), "\n")
		if r.code != exitFailed || !strings.HasPrefix(lines[len(lines)-1], "hint: ") || r.out != "" {
			t.Errorf("twinhold %s --no-such-flag: exit %d, stdout %q, stderr %q", strings.Join(path, " "), r.code, r.out, r.err)
		}
	}
	if seen < 3 {
		t.Errorf("only %d commands were looked at", seen)
	}
}

// The binary itself, as a person runs it: the exit code reaches the shell.
func TestBinary(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "twinhold")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	for _, tc := range []struct {
		text string
		code int
	}{{goodConfig, exitDone}, {badConfig, exitFailed}} {
		cmd := exec.Command(bin, "config", "check", "--config", configFile(t, tc.text))
		cmd.Env = append(os.Environ(), "PW=s3cret")
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != tc.code {
			t.Errorf("exit %v, %v, want %d:\n%s", cmd.ProcessState, err, tc.code, out)
		}
		if bytes.Contains(out, []byte("s3cret")) {
			t.Errorf("a password is shown:\n%s", out)
		}
	}
}
