package devstack

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"sync"
	"testing"
	"time"
)

func TestWhichServerOnPathIsUsed(t *testing.T) {
	t.Parallel()
	for version, used := range map[string]bool{
		"mysqld  Ver 9.7.4-2 for Linux on x86_64 ((Debian))":                      true,
		"mysqld  Ver 8.0.36 for Linux on x86_64 (MySQL Community Server - GPL)":   true,
		"mysqld  Ver 8.0.19 for Linux on x86_64 (MySQL Community Server - GPL)":   true,
		"mysqld  Ver 8.0.18 for Linux on x86_64 (MySQL Community Server - GPL)":   false,
		"mysqld  Ver 5.7.44 for Linux on x86_64 (MySQL Community Server (GPL))":   false,
		"mysqld  Ver 10.11.6-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64 ()": false,
		"mysqld  Ver 15.1 Distrib 10.11.6-MariaDB, for debian-linux-gnu (x86_64)": false,
		"something else": false,
	} {
		if why := checkMySQL(version); (why == "") != used {
			t.Errorf("%q: %q", version, why)
		}
	}
	for version, used := range map[string]bool{
		"Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64": true,
		"Redis server v=8.2.1 sha=00000000:1 malloc=jemalloc-5.3.0 bits=64":  true,
		"Redis server v=6.0.16 sha=00000000:0 malloc=jemalloc-5.2.1 bits=64": false,
	} {
		if why := checkRedis(version); (why == "") != used {
			t.Errorf("%q: %q", version, why)
		}
	}
}

func TestDebianSources(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, root, "etc/apt/sources.list", `# old form
deb [arch=amd64 signed-by=/k.gpg] http://mirror.example/debian bookworm main contrib
deb-src http://mirror.example/debian bookworm main
deb http://other.example/linux/debian bookworm stable
`)
	write(t, root, "etc/apt/sources.list.d/debian.sources", `Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm-updates
 bookworm-backports
Components: main
# a comment
Signed-By: /k.gpg

Types: deb
URIs: http://sec.example/debian-security
Suites: bookworm-security
Components: main

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main
`)
	got, err := debianSources(root, "bookworm")
	want := []source{
		{"http://mirror.example/debian", "bookworm", []string{"main", "contrib"}},
		{"http://mirror.example/debian", "bookworm-updates", []string{"main"}},
		{"http://sec.example/debian-security", "bookworm-security", []string{"main"}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := debianSources(root, "trixie"); err == nil {
		t.Error("found a release that is not there")
	}
}

func TestCodename(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, root, "etc/os-release", "ID=debian\nVERSION_CODENAME=bookworm\n")
	if name, err := codename(root); err != nil || name != "bookworm" {
		t.Errorf("%q, %v", name, err)
	}
	write(t, root, "etc/os-release", "ID=ubuntu\nVERSION_CODENAME=noble\n")
	if name, err := codename(root); err == nil {
		t.Errorf("took Ubuntu for Debian: %q", name)
	}
}

func TestLockIsHeldByOne(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	l, err := tryLock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tryLock(path); !errors.Is(err, errLocked) {
		t.Errorf("second lock: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lock(ctx, path); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting: %v", err)
	}
	l.unlock()
	l, err = lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	l.unlock()
}

func TestStartTakesAnotherPortWhenOneIsTaken(t *testing.T) {
	t.Parallel()
	run, err := newRunFolder(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dev, err := devDir("")
	if err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	s := &Stack{dev: dev, run: run, launch: newLauncher(), progress: progressOf(nil)}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	r, err := s.AddRedis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	// A port that is kept is waited for; taken for good, it is an error.
	r.port.Store(int64(taken.Addr().(*net.TCPAddr).Port))
	if err := r.launchOnce(t.Context()); !errors.Is(err, errPortTaken) {
		t.Errorf("a taken port: %v", err)
	}
	r.port.Store(0)
	if err := r.Start(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestModuleRootIsFoundFromBelow(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, root, "go.mod", "module "+modulePath+"\n\ngo 1.26\n")
	write(t, root, "a/go.mod", "module example.com/other\n")
	write(t, root, "a/b/x", "")
	if got := ModuleRoot(filepath.Join(root, "a/b")); got != root {
		t.Errorf("got %s, want %s", got, root)
	}
}

func write(t *testing.T, root, name, text string) {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A folder in which somebody still writes for a moment is removed all the same.
func TestRemoveAllOutlastsALastWriter(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var writer sync.WaitGroup
	writing := make(chan struct{})
	writer.Go(func() {
		until := time.Now().Add(300 * time.Millisecond)
		for n := 0; time.Now().Before(until); n++ {
			if os.WriteFile(filepath.Join(dir, strconv.Itoa(n)), nil, 0o600) != nil {
				return // it is gone
			}
			if n == 100 {
				close(writing)
			}
		}
	})
	<-writing
	if err := removeAll(dir); err != nil {
		t.Error(err)
	}
	writer.Wait()
}
