package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/twinhold/twinhold/internal/devpods"
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
			"and writes a configuration for them. Everything private is stopped and removed at the end (Ctrl-C).\n" +
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
	progress := newProgress(a.err)
	pods, err := devpods.Start(ctx, devpods.Options{Pods: f.pods, MySQL: f.mysql, Redis: f.redis, Progress: progress.phase})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pods.Close()) }()
	if f.write != "" {
		if err := writeWhole(f.write, pods.YAML); err != nil {
			return &exitError{code: exitFailed, err: err, hint: "name a file in a folder that you may write to"}
		}
	}
	if err := a.printDevstack(f, pods); err != nil {
		return err
	}
	if pods.Stack == nil {
		return nil
	}
	progress.phase("running until interrupted (Ctrl-C)")
	<-ctx.Done()
	progress.phase("stopping, and removing the servers' data")
	return nil
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
