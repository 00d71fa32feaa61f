package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/internal/podset/podsettest"
)

// SIGHUP takes other tokens; a file with mistakes changes nothing and is told whole; the router serves on meanwhile.
func TestServeReadsItsConfigurationAgain(t *testing.T) {
	pods, _ := podsettest.Pods(t, 1)
	tokens := filepath.Join(t.TempDir(), "tokens.yaml")
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	token := func(secret string) string { return "tokens: [{name: a, role: viewer, token: " + secret + "}]" }
	write(tokens, token("0123456789abcdef"))
	text, data, admin := knownPorts(t, pods.YAML, "")
	text = strings.Replace(text, `admin: {listen: "`+admin+`"`, `admin: {listen: "`+admin+`", tokens_file: "`+tokens+`"`, 1)
	file := configFile(t, text)
	p := startServe(t, file)
	hup := func() {
		t.Helper()
		if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	status := func(secret string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+admin+"/status", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+secret)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	if code := status("0123456789abcdef"); code != 200 {
		t.Fatalf("the first token: %d", code)
	}
	write(tokens, token("fedcba9876543210"))
	hup()
	devtest.Until(t, "the new token is known", func() bool { return status("fedcba9876543210") == 200 })
	if code := status("0123456789abcdef"); code != 401 {
		t.Errorf("the old token: %d", code)
	}

	// Mistakes change nothing. That it has been read shows in what the next, good one does.
	write(tokens, token("0123456789abcdef"))
	write(file, strings.Replace(text, "version: 1", "version: 7\ncolour: red", 1))
	hup()
	write(tokens, token("short"))
	write(file, strings.Replace(text, data, "127.0.0.1:1", 1))
	hup()
	write(tokens, token("abcdefabcdefabcdef"))
	hup()
	devtest.Until(t, "the third token is known", func() bool { hup(); return status("abcdefabcdefabcdef") == 200 })
	res := runCLI(t, "stock", "get", "--shop", "1", "--item", "1", "--group", "1", "--config", configFile(t, text))
	if !strings.Contains(res.err, "unknown bucket") || strings.Contains(res.err, "warning") {
		t.Errorf("the router at its old address: %s", res.err)
	}
	code, log := p.term(t)
	if code != exitDone || !strings.Contains(log, "data.listen") || !strings.Contains(log, `taken="after a restart"`) {
		t.Errorf("exit %d, log:\n%s", code, log)
	}
}
