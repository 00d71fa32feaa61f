package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
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
	if err := takePods(ctx, next, changes, set); err != nil {
		return err
	}
	srv.SetPods(serverPods(set))
	return nil
}

// taker is a set that takes pods and tuning while it serves.
type taker interface {
	Take(ctx context.Context, next *config.Config, changes []config.Change) error
}

var errNotTaken = errors.New("this version takes pods, tuning and bounds at a restart only: start serve again")

// takePods hands what is not the listeners' on. What cannot be taken must not pass for taken.
func takePods(ctx context.Context, next *config.Config, changes []config.Change, set *podset.Set) error {
	if t, ok := any(set).(taker); ok {
		return t.Take(ctx, next, changes)
	}
	for _, c := range changes {
		if c.Takes == config.Now && !strings.HasPrefix(c.Path, "data.") && !strings.HasPrefix(c.Path, "admin.") {
			return errNotTaken
		}
	}
	return nil
}
