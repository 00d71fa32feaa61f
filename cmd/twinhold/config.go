package main

import (
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/twinhold/twinhold/config"
)

func newConfigCmd(a *app) *cobra.Command {
	cmd := newGroupCmd(a, "config", "Look after twinhold.yaml")
	cmd.Example = "  twinhold config check --config twinhold.yaml"
	cmd.AddCommand(newConfigCheckCmd(a))
	return cmd
}

func newConfigCheckCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Name every mistake in twinhold.yaml, with line and column",
		Long: "Reads the configuration as serve would, the environment and the files it names included, and connects to nothing.\n" +
			"Exit 0: no mistake. Exit 1: every mistake is listed, with what to write instead.",
		Example: "  twinhold config check --config twinhold.yaml\n  twinhold config check --format json",
		Args:    noArgs,
		RunE:    func(*cobra.Command, []string) error { return a.configCheck() },
	}
}

// configResult is the JSON of config check.
type configResult struct {
	OK       bool            `json:"ok"`
	File     string          `json:"file"`
	Pods     []configPod     `json:"pods"`
	Mistakes []configMistake `json:"mistakes"`
}

type configPod struct {
	Pod           string   `json:"pod"`
	Shops         []string `json:"shops"`
	DeclaredStage string   `json:"declared_stage"`
	MaxStage      string   `json:"max_stage"`
	Redis         string   `json:"redis"`
	MySQL         string   `json:"mysql"`
	MySQLReplica  string   `json:"mysql_replica,omitempty"`
}

type configMistake struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Path    string `json:"path"`
	Message string `json:"message"`
}

// configCheck prints what is wrong, or what is declared. The mistakes are its result, so they go to stdout.
func (a *app) configCheck() error {
	res := configResult{File: a.configPath, Pods: []configPod{}, Mistakes: []configMistake{}}
	c, err := config.LoadEnv(a.configPath, a.getenv)
	var mistakes *config.Error
	switch {
	case errors.As(err, &mistakes):
		for _, m := range mistakes.Mistakes {
			res.Mistakes = append(res.Mistakes, configMistake(m))
		}
	case err != nil:
		return err
	default:
		res.OK = true
		for _, p := range c.Pods {
			res.Pods = append(res.Pods, describePod(p))
		}
	}
	if err := a.printConfigResult(res, mistakes); err != nil {
		return err
	}
	if !res.OK {
		return &exitError{
			code: exitFailed,
			err:  fmt.Errorf("%s has %s", a.configPath, plural(len(res.Mistakes), "mistake")),
			hint: "mend what is listed, then run config check again",
		}
	}
	return nil
}

func describePod(p config.Pod) configPod {
	d := configPod{
		Pod: p.ID, DeclaredStage: p.DeclaredStage().String(), MaxStage: p.MaxStage.String(),
		Redis: p.Redis.String(), MySQL: p.MySQL.String(), MySQLReplica: p.MySQLReplica.String(),
	}
	for _, r := range p.Shops {
		d.Shops = append(d.Shops, r.String())
	}
	return d
}

func (a *app) printConfigResult(res configResult, mistakes *config.Error) error {
	if a.format == formatJSON {
		return a.printJSON(res)
	}
	var err error
	if mistakes != nil {
		_, err = fmt.Fprintln(a.out, mistakes)
	} else {
		w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
		for _, p := range res.Pods {
			if _, err := fmt.Fprintf(w, "%s\tshops %s\tdeclares %s\tup to %s\t%s\t%s\n",
				p.Pod, strings.Join(p.Shops, ","), p.DeclaredStage, p.MaxStage, p.Redis, p.MySQL); err != nil {
				return fmt.Errorf("write the result: %w", err)
			}
		}
		if err := w.Flush(); err != nil {
			return fmt.Errorf("write the result: %w", err)
		}
		_, err = fmt.Fprintf(a.out, "%s: ok, %s\n", res.File, plural(len(res.Pods), "pod"))
	}
	if err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}
