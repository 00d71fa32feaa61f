package main

import (
	"context"
	"log/slog"
	"os"
	"sync"

	"github.com/twinhold/twinhold/config"
	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/internal/server"
)

// reloading reads the configuration again at every signal, until the context ends. The returned function waits for that.
func (a *app) reloading(ctx context.Context, hup <-chan os.Signal, cfg *config.Config, srv *server.Server, set *podset.Set, log *slog.Logger) (wait func()) {
	r := config.NewReloader(cfg, a.configPath, a.getenv, log, func(ctx context.Context, next *config.Config, changes []config.Change) error {
		return a.take(ctx, next, changes, srv, set)
	})
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-hup:
				r.Reload(ctx)
			}
		}
	})
	return running.Wait
}

// take makes the running router obey a configuration. What can fail comes first.
func (a *app) take(ctx context.Context, next *config.Config, changes []config.Change, srv *server.Server, set *podset.Set) error {
	tokens, err := a.adminTokens(next)
	if err != nil {
		return err
	}
	if err := srv.RenewTLS(next.Data.TLS, next.Admin.TLS); err != nil {
		return err
	}
	if err := srv.SetTokens(tokens); err != nil {
		return err
	}
	if err := set.Take(ctx, next, changes); err != nil {
		return err
	}
	srv.SetPods(serverPods(set))
	return nil
}
