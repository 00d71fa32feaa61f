package devstack

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// initSQL lets root in over TCP without looking up the name of 127.0.0.1.
const initSQL = `CREATE USER root@'127.0.0.1';
GRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;
GRANT PROXY ON ''@'' TO root@'127.0.0.1' WITH GRANT OPTION;
`

// mysqlTemplate is an initialised, never started data folder for this mysqld.
// Initialising takes seconds, copying a fraction of one.
func mysqlTemplate(ctx context.Context, dev string, prog *program, progress func(string)) (string, error) {
	key := fnv.New32a()
	_, _ = key.Write([]byte(prog.path + prog.version + initSQL)) // never fails
	template := filepath.Join(dev, fmt.Sprintf("mysql-data-%08x", key.Sum32()))
	guard, err := lock(ctx, filepath.Join(dev, "template.lock"))
	if err != nil {
		return "", err
	}
	defer guard.unlock()
	if _, err := os.Stat(template); err == nil {
		return template, nil
	}
	progress("preparing a MySQL data folder")
	began := time.Now()
	if err := initialise(ctx, prog, template); err != nil {
		return "", err
	}
	progress(fmt.Sprintf("prepared a MySQL data folder in %.0f s", time.Since(began).Seconds()))
	return template, nil
}

// initialise makes the data folder under another name first, so that one that
// has its name is complete.
func initialise(ctx context.Context, prog *program, template string) error {
	data, log, conf, start := template+".new", template+".log", template+".cnf", template+".sql"
	if err := os.RemoveAll(data); err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	lines := append(mysqlBase(prog, data),
		"log-error="+log,
		"loose_innodb_redo_log_capacity=32M",
		"disable-log-bin",
		"init-file="+start,
	)
	for name, text := range map[string]string{conf: strings.Join(lines, "\n") + "\n", start: initSQL} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return fmt.Errorf("devstack: %w", err)
		}
	}
	from := fileSize(log)
	path, args := prog.command("--defaults-file="+conf, "--initialize-insecure")
	if err := runTool(ctx, path, args...); err != nil {
		return &Error{
			Doing: "preparing a MySQL data folder",
			Err:   fmt.Errorf("%w\n%s", err, tail(log, from, 15)),
			Hint:  "if this mysqld is confined to its own folders (AppArmor), take it off PATH; another one is fetched then",
		}
	}
	// Each copy makes up a server id of its own.
	if err := os.Remove(filepath.Join(data, "auto.cnf")); err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	if err := os.Rename(data, template); err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	return nil
}

// copyTree copies folders and regular files. Where the file system can share
// blocks, or copy inside the kernel, io.Copy makes it do so.
func copyTree(ctx context.Context, from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if d.IsDir() {
			return os.MkdirAll(target, 0o700)
		}
		return copyFile(path, target)
	})
}

func copyFile(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(dst, src); err != nil {
		dst.Close()
		return err
	}
	return dst.Close()
}
