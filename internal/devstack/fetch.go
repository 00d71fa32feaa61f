package devstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// packages is what to fetch for one server.
type packages struct {
	name  string // of the prefix below the dev folder
	title string // for people
	names []string
	// suite is one of Debian's, "" for the system's own.
	suite string
	// hint is what to do where fetching is not possible.
	hint string
}

//nolint:gochecknoglobals // two constant lists
var (
	mysqlPackages = packages{
		name: "mysql", title: "MySQL (65 MB)", suite: "unstable",
		names: []string{"mysql-server-core", "mysql-client-core"},
		hint:  "put a mysqld of MySQL 8.0.19 or later on PATH (MariaDB will not do), then try again",
	}
	redisPackages = packages{
		name: "redis", title: "Redis",
		names: []string{"redis-server"},
		hint:  "put a redis-server 7.0 or later on PATH, then try again",
	}
)

// fetch downloads the packages with all they depend on, unpacks them into a
// prefix below the dev folder, and returns it. A prefix that is there is
// complete, since it gets its name last. An interrupted download goes on where
// it was.
func fetch(ctx context.Context, dev string, p packages, why string, progress func(string)) (string, error) {
	prefix := filepath.Join(dev, p.name)
	guard, err := lock(ctx, filepath.Join(dev, "fetch.lock"))
	if err != nil {
		return "", err
	}
	defer guard.unlock()
	if _, err := os.Stat(prefix); err == nil {
		return prefix, nil
	}
	progress(fmt.Sprintf("%s: fetching %s from Debian into %s", why, p.title, prefix))
	began := time.Now()
	err = fetchInto(ctx, dev, prefix, p)
	if ctx.Err() != nil && err != nil {
		return "", fmt.Errorf("devstack: fetching %s: %w", p.title, err)
	}
	if err != nil {
		return "", &Error{"fetching " + p.title, fmt.Errorf("%s, and: %w", why, err), p.hint}
	}
	progress(fmt.Sprintf("fetched %s in %.0f s", p.name, time.Since(began).Seconds()))
	return prefix, nil
}

func fetchInto(ctx context.Context, dev, prefix string, p packages) error {
	for _, tool := range []string{"apt-get", "dpkg-deb"} {
		if lookPath(tool) == "" {
			return fmt.Errorf("there is no %s", tool)
		}
	}
	list, err := sourcesFor(p.suite)
	if err != nil {
		return err
	}
	apt, err := newApt(filepath.Join(dev, "apt", p.name), list)
	if err != nil {
		return err
	}
	if err := apt.run(ctx, "update", "-qq"); err != nil {
		return err
	}
	get := append([]string{"install", "-qq", "-y", "--download-only"}, p.names...)
	if err := apt.run(ctx, get...); err != nil {
		return err
	}
	unpacked := prefix + ".unpacking"
	if err := unpack(ctx, apt.archives(), unpacked); err != nil {
		return err
	}
	if err := os.Rename(unpacked, prefix); err != nil {
		return err
	}
	return os.RemoveAll(apt.dir) // the packages are of no more use
}

// sourcesFor is a sources.list for a suite from the mirror that the system
// itself uses.
func sourcesFor(suite string) (string, error) {
	name, err := codename("/")
	if err != nil {
		return "", err
	}
	own, err := debianSources("/", name)
	if err != nil {
		return "", err
	}
	if suite != "" {
		own = slices.DeleteFunc(own, func(s source) bool { return s.suite != name })[:1]
		own[0].suite = suite
	}
	var list strings.Builder
	for _, s := range own {
		fmt.Fprintf(&list, "deb [signed-by=%s] %s %s main\n", keyring, s.uri, s.suite)
	}
	return list.String(), nil
}

// apt runs apt-get on lists, a cache and a package status of its own, so that
// the system's stay as they are.
type apt struct{ dir string }

func newApt(dir, sources string) (*apt, error) {
	a := &apt{dir}
	for _, d := range []string{"lists/partial", "cache/archives/partial", "none"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	// The system's configuration is read first (it may name a proxy); this is
	// read after it and takes back what would touch the system.
	conf := fmt.Sprintf(`#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear Acquire::IndexTargets::deb::DEP-11;
#clear Acquire::IndexTargets::deb::DEP-11-icons-small;
#clear Acquire::IndexTargets::deb::DEP-11-icons;
#clear Acquire::IndexTargets::deb::DEP-11-icons-large;
Dir::Etc::sourcelist "%[1]s/sources.list";
Dir::Etc::sourceparts "%[1]s/none";
Dir::Etc::preferences "%[1]s/none/preferences";
Dir::Etc::preferencesparts "%[1]s/none";
Dir::State "%[1]s";
Dir::State::lists "%[1]s/lists";
Dir::State::status "%[1]s/status";
Dir::Cache "%[1]s/cache";
Dir::Cache::archives "archives";
Dir::Log "%[1]s/none";
APT::Sandbox::User "%[2]s";
APT::Install-Recommends "false";
APT::Keep-Downloaded-Packages "true";
Acquire::Languages "none";
Acquire::Retries "3";
`, dir, sandboxUser())
	for name, text := range map[string]string{"sources.list": sources, "apt.conf": conf, "status": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// sandboxUser is root for root: apt's own user may be unable to reach the dev
// folder. For anyone else the setting has no effect.
func sandboxUser() string {
	if os.Geteuid() == 0 {
		return "root"
	}
	return "_apt"
}

func (a *apt) archives() string { return filepath.Join(a.dir, "cache/archives") }

func (a *apt) run(ctx context.Context, args ...string) error {
	return runTool(ctx, "apt-get", append([]string{"-c", filepath.Join(a.dir, "apt.conf")}, args...)...)
}

// unpack extracts all packages of a folder into a new one. Perl comes along as
// a dependency of helper scripts that nobody runs here.
func unpack(ctx context.Context, archives, into string) error {
	if err := os.RemoveAll(into); err != nil {
		return err
	}
	if err := os.MkdirAll(into, 0o755); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(archives, "*.deb"))
	if err != nil {
		return err
	}
	if len(debs) == 0 {
		return errors.New("apt-get downloaded nothing")
	}
	for _, deb := range debs {
		if name := filepath.Base(deb); strings.HasPrefix(name, "perl") || strings.HasPrefix(name, "libperl") {
			continue
		}
		if err := runTool(ctx, "dpkg-deb", "-x", deb, into); err != nil {
			return err
		}
	}
	return nil
}

// runTool runs a command to its end; its output is part of the error only. The
// command dies with this process, so that it does not work against the next
// attempt.
func runTool(ctx context.Context, name string, args ...string) error {
	runtime.LockOSThread() // see launcher
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	cmd.SysProcAttr = dieWithParent()
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, lastLines(string(out), 8))
	}
	return nil
}
