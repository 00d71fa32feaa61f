package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/twinhold/twinhold/internal/devpods"
	"github.com/twinhold/twinhold/internal/devstack"
)

type devstackFlags struct {
	pods                int
	write, mysql, redis string
}

func newDevstackCmd(a *app) *cobra.Command {
	f := devstackFlags{}
	cmd := &cobra.Command{
		Use:   "devstack",
		Short: "Run a private MySQL and Redis until interrupted, with a configuration that is ready to use",
		Long: "Starts a private MySQL and a private Redis under .dev/ (or takes the given servers), creates one schema a pod,\n" +
			"and writes a configuration for them. Everything private is stopped and removed at the end (Ctrl-C),\n" +
			"that configuration too.\n" +
			"With --mysql and --redis the command sets up the schemas, writes the configuration and ends.",
		Example: "  twinhold devstack --pods 2 --write twinhold.yaml\n" +
			"  twinhold devstack --mysql 'user:password@tcp(127.0.0.1:3306)/' --redis redis://127.0.0.1:6379/0 --write twinhold.yaml",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.devstack(cmd.Context(), f) },
	}
	fl := cmd.Flags()
	fl.IntVar(&f.pods, "pods", 1, "how many pods; pod N has the shops 1000(N-1)+1 to 1000N")
	fl.StringVar(&f.write, "write", "", "write the configuration to this `FILE`; else it is printed")
	fl.StringVar(&f.mysql, "mysql", "", "a MySQL that is there, a `DSN` without a schema")
	fl.StringVar(&f.redis, "redis", "", "a Redis that is there, a `URL`")
	return cmd
}

// devstackResult is the JSON of devstack.
type devstackResult struct {
	Servers string   `json:"servers"`
	Config  string   `json:"config"`
	Pods    []string `json:"pods"`
	PID     int      `json:"pid"`
}

func (a *app) devstack(ctx context.Context, f devstackFlags) (err error) {
	if f.pods < 1 {
		return &exitError{code: exitFailed, err: fmt.Errorf("--pods %d is out of range", f.pods), hint: "use 1 or more"}
	}
	if err := mayWrite(f.write); err != nil {
		return err
	}
	progress := newProgress(a.err)
	pods, err := devpods.Start(ctx, devpods.Options{Pods: f.pods, MySQL: f.mysql, Redis: f.redis, Progress: progress.phase})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pods.Close()) }()
	if f.write != "" {
		if err := writeWhole(f.write, append(signature(), pods.YAML...)); err != nil {
			return &exitError{code: exitFailed, err: err, hint: "name a file in a folder that you may write to"}
		}
	}
	if pods.Stack != nil && f.write != "" {
		defer func() { err = errors.Join(err, removeOwn(f.write)) }()
	}
	if err := a.printDevstack(f, pods); err != nil {
		return err
	}
	if pods.Stack == nil {
		return nil
	}
	progress.phase("running until interrupted (Ctrl-C)")
	a.awaitEnd(ctx, pods.Stack)
	progress.phase("stopping, and removing the servers' data")
	return nil
}

// awaitEnd waits until the command is interrupted. A server that has died by itself is told once; the other runs on.
func (a *app) awaitEnd(ctx context.Context, stack *devstack.Stack) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	told := map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			for name, pid := range map[string]int{"MySQL": stack.MySQL.PID(), "Redis": stack.Redis.PID()} {
				if pid == 0 && !told[name] {
					told[name] = true
					a.warn("the private %s has ended by itself (killed, or is the disk full?); stop this command and run it again", name)
				}
			}
		}
	}
}

const signaturePrefix = "# written by twinhold devstack, process "

// signature marks a configuration as this process's, so that it may be written over once the process is gone.
func signature() []byte { return fmt.Appendf(nil, "%s%d\n", signaturePrefix, os.Getpid()) }

// removeOwn removes the configuration of servers that are gone, if it is still the one that this process wrote.
func removeOwn(name string) error {
	text, err := os.ReadFile(name) //nolint:gosec // the file that the person named
	if errors.Is(err, fs.ErrNotExist) || err == nil && !bytes.HasPrefix(text, signature()) {
		return nil
	}
	if err == nil {
		err = os.Remove(name)
	}
	if err != nil {
		return fmt.Errorf("remove the configuration: %w", err)
	}
	return nil
}

// mayWrite refuses to write over a file that is not devstack's, or that a devstack which still runs has written.
func mayWrite(name string) error {
	if name == "" {
		return nil
	}
	old, err := os.ReadFile(name) //nolint:gosec // the file that the person named
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return &exitError{code: exitFailed, err: err, hint: "name a file that can be written"}
	}
	first, _, _ := strings.Cut(string(old), "\n")
	pid, err := strconv.Atoi(strings.TrimPrefix(first, signaturePrefix))
	switch {
	case err != nil:
		return &exitError{code: exitFailed, err: fmt.Errorf("%s is there and was not written by devstack", name), hint: "name another file, or move it away"}
	case pid != os.Getpid() && syscall.Kill(pid, 0) == nil:
		return &exitError{code: exitFailed, err: fmt.Errorf("%s belongs to a devstack that still runs (process %d)", name, pid), hint: "name another file, or stop that one"}
	default:
		return nil
	}
}

func (a *app) printDevstack(f devstackFlags, pods *devpods.Pods) error {
	if a.format == formatJSON {
		res := devstackResult{Servers: pods.Versions, Config: f.write, PID: os.Getpid()}
		for _, p := range pods.Config.Pods {
			res.Pods = append(res.Pods, p.ID)
		}
		return a.printJSON(res)
	}
	text := fmt.Sprintf("# %s\n%s", pods.Versions, pods.YAML)
	if f.write != "" {
		text = fmt.Sprintf("%s\nthe configuration is in %s: try\n  twinhold doctor --config %s\n", pods.Versions, f.write, f.write)
	}
	if _, err := fmt.Fprint(a.out, text); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

// writeWhole writes whole or not at all, readable by its owner only: a configuration may hold passwords.
func writeWhole(name string, data []byte) error {
	tmp := name + ".tmp"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	if err := os.Rename(tmp, name); err != nil {
		return errors.Join(fmt.Errorf("write the configuration: %w", err), os.Remove(tmp))
	}
	return nil
}
