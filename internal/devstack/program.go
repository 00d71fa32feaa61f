package devstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// program is a server's executable, on PATH or in a private prefix.
type program struct {
	path    string // what is run
	loader  string // the prefix's own dynamic loader, empty for one on PATH
	libs    string // the prefix's library path
	prefix  string // empty for one on PATH
	version string // as the program prints it
}

// command is what to execute: a prefixed program is run by the loader and with
// the libraries that were fetched with it, since the system's may be older.
func (p *program) command(args ...string) (string, []string) {
	if p.loader == "" {
		return p.path, args
	}
	return p.loader, append([]string{"--library-path", p.libs, p.path}, args...)
}

// inPrefix finds a program in an unpacked prefix.
func inPrefix(prefix, rel string) (*program, error) {
	p := &program{path: filepath.Join(prefix, rel), prefix: prefix}
	if _, err := os.Stat(p.path); err != nil {
		return nil, fmt.Errorf("devstack: the unpacked packages lack %s: %w", rel, err)
	}
	var libs []string
	for _, pattern := range []string{"lib/*-linux-gnu*", "usr/lib/*-linux-gnu*"} {
		found, err := filepath.Glob(filepath.Join(prefix, pattern))
		if err != nil {
			return nil, fmt.Errorf("devstack: %w", err)
		}
		for _, dir := range found {
			libs = append(libs, dir)
			if ld, _ := filepath.Glob(filepath.Join(dir, "ld-linux-*.so.*")); len(ld) > 0 {
				p.loader = ld[0]
			}
		}
	}
	if p.loader == "" {
		return nil, errors.New("devstack: the unpacked packages lack a dynamic loader")
	}
	p.libs = strings.Join(libs, ":")
	return p, nil
}

// askVersion runs the program with --version and keeps the answer.
func (p *program) askVersion(ctx context.Context) error {
	path, args := p.command("--version")
	out, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("devstack: %s --version: %w: %s", p.path, err, lastLines(string(out), 5))
	}
	p.version = strings.TrimSpace(string(out))
	return nil
}

// onPath finds a program on PATH whose version is good enough. A nil program
// with a nil error means that there is none, and why says so.
func onPath(ctx context.Context, name string, check func(version string) (why string)) (p *program, why string, err error) {
	path := lookPath(name)
	if path == "" {
		return nil, "no " + name + " on PATH", nil
	}
	p = &program{path: path}
	if err := p.askVersion(ctx); err != nil {
		if ctx.Err() != nil {
			return nil, "", err
		}
		return nil, name + " on PATH does not run", nil
	}
	if why := check(p.version); why != "" {
		return nil, why, nil
	}
	return p, "", nil
}

// lookPath is the program's path, empty if PATH does not have it.
func lookPath(name string) string {
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return path
}

// findMySQL is mysqld on PATH if it is MySQL 8.0.19 or later, else the one that
// was fetched, else the one that is fetched now.
func findMySQL(ctx context.Context, dev string, progress func(string)) (*program, error) {
	p, why, err := onPath(ctx, "mysqld", checkMySQL)
	if p != nil || err != nil {
		return p, err
	}
	prefix, err := fetch(ctx, dev, mysqlPackages, why, progress)
	if err != nil {
		return nil, err
	}
	return prefixed(ctx, dev, prefix, "usr/sbin/mysqld", "usr/bin/mysql")
}

// findRedis is the same for redis-server 7.0 or later.
func findRedis(ctx context.Context, dev string, progress func(string)) (*program, error) {
	p, why, err := onPath(ctx, "redis-server", checkRedis)
	if p != nil || err != nil {
		return p, err
	}
	prefix, err := fetch(ctx, dev, redisPackages, why, progress)
	if err != nil {
		return nil, err
	}
	return prefixed(ctx, dev, prefix, "usr/bin/redis-server", "usr/bin/redis-cli")
}

// prefixed is a server in its prefix. Its tools, for people, get a starter.
func prefixed(ctx context.Context, dev, prefix, rel string, tools ...string) (*program, error) {
	p, err := inPrefix(prefix, rel)
	if err != nil {
		return nil, err
	}
	for _, tool := range tools {
		if err := writeStarter(dev, p, filepath.Join(prefix, tool)); err != nil {
			return nil, err
		}
	}
	return p, p.askVersion(ctx)
}

// checkMySQL says why a mysqld is not used, or nothing.
func checkMySQL(version string) string {
	if strings.Contains(version, "MariaDB") {
		return "mysqld on PATH is MariaDB, which is not MySQL"
	}
	if !atLeast(version, `Ver (\d+)\.(\d+)\.(\d+)`, 8, 0, 19) {
		return "mysqld on PATH is older than 8.0.19"
	}
	return ""
}

func checkRedis(version string) string {
	if !atLeast(version, `v=(\d+)\.(\d+)\.(\d+)`, 7, 0, 0) {
		return "redis-server on PATH is older than 7.0"
	}
	return ""
}

// atLeast compares the numbers that the pattern finds, the first one deciding.
func atLeast(version, pattern string, want ...int) bool {
	m := regexp.MustCompile(pattern).FindStringSubmatch(version)
	if len(m) != len(want)+1 {
		return false
	}
	for i, w := range want {
		got, err := strconv.Atoi(m[i+1])
		if err != nil {
			return false
		}
		if got != w {
			return got > w
		}
	}
	return true
}
