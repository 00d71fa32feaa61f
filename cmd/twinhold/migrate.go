package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/twinhold/twinhold/mysqlstore"
)

func newMigrateCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "migrate",
		Short:   "Create the tables in every pod's MySQL schema, or bring older ones up to date",
		Long:    "May be run again at any time, also after a run that failed half-way. The schema itself must be there.",
		Example: "  twinhold migrate --config twinhold.yaml",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.migrate(cmd.Context()) },
	}
}

func (a *app) migrate(ctx context.Context) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	done := make([]string, 0, len(cfg.Pods))
	for _, p := range cfg.Pods {
		if err := mysqlstore.Migrate(ctx, p.MySQL.Reveal()); err != nil {
			return &exitError{
				code: exitFailed, err: fmt.Errorf("migrate pod %s (%s): %w", p.ID, p.MySQL, err),
				hint: "the pods before it are done; mend this one and run migrate again",
			}
		}
		done = append(done, p.ID)
		if a.format == formatText {
			if _, err := fmt.Fprintf(a.out, "%s: the schema is up to date\n", p.ID); err != nil {
				return fmt.Errorf("write the result: %w", err)
			}
		}
	}
	if a.format == formatJSON {
		return a.printJSON(struct {
			Migrated []string `json:"migrated"`
		}{done})
	}
	return nil
}
