package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"github.com/twinhold/twinhold/config"
	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/internal/server"
)

// answerTimeout bounds what the end of serve waits for calls that were taken: longer than the longest deadline.
const answerTimeout = 20 * time.Second

func newServeCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Run a router: the data API and the admin listener",
		Long: "Serves every pod of the configuration until it is told to stop (SIGTERM or Ctrl-C). Then it takes no new calls,\n" +
			"answers those that it took, gives the mirrors what they lack, and exits 0. A second signal ends it at once.\n" +
			"SIGHUP reads the configuration again: new pods, tuning, tokens and certificates are taken, a stage never is, and\n" +
			"what waits for a restart is logged. A file with a mistake changes nothing.",
		Example: "  twinhold serve --config twinhold.yaml",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.serve(cmd.Context()) },
	}
}

func (a *app) serve(ctx context.Context) (err error) {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	tokens, err := a.adminTokens(cfg)
	if err != nil {
		return err
	}
	hup := make(chan os.Signal, 1) // from the start: by default it would end the process
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	log := slog.New(slog.NewTextHandler(a.err, nil))
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	set, err := podset.Open(ctx, cfg, podset.Options{Logger: log, Registerer: reg})
	if err != nil {
		return &exitError{code: exitFailed, err: err, hint: openHint(err, a.configPath)}
	}
	srv, err := server.New(serverOptions(cfg, set, tokens, log, reg))
	if err == nil {
		err = srv.Start(ctx)
	}
	if err != nil {
		a.closeSet(ctx, set, log)
		return &exitError{code: exitFailed, err: err, hint: serveHint(err)}
	}
	set.Start()
	log.Info("serving", "data", srv.DataAddr(), "admin", srv.AdminAddr(), "pods", len(set.Pods))
	reloads, stop := context.WithCancel(ctx)
	reloaded := a.reloading(reloads, hup, cfg, srv, set, log)
	return a.untilStopped(ctx, srv, set, log, func() { stop(); reloaded() })
}

// adminTokens reads the tokens file, if the configuration names one.
func (a *app) adminTokens(cfg *config.Config) (server.Tokens, error) {
	if cfg.Admin.TokensFile == "" {
		return nil, nil
	}
	tokens, err := server.LoadTokens(cfg.Admin.TokensFile)
	if err != nil {
		return nil, &exitError{code: exitFailed, err: err, hint: "docs/api.md shows a tokens file; without admin.tokens_file the admin listener stays on loopback and needs none"}
	}
	return tokens, nil
}

func serverOptions(cfg *config.Config, set *podset.Set, tokens server.Tokens, log *slog.Logger, reg *prometheus.Registry) server.Options {
	return server.Options{
		Router: set.Router, PodOf: podOf(set), DataListen: cfg.Data.Listen, AdminListen: cfg.Admin.Listen, Tokens: tokens,
		DataTLS: cfg.Data.TLS, AdminTLS: cfg.Admin.TLS, MaxInFlight: cfg.Data.MaxInFlight,
		Logger: log, Registerer: reg, Gatherer: reg, Pods: serverPods(set),
	}
}

// podOf names a shop's pod as the router knows it now.
func podOf(set *podset.Set) func(shop int64) string {
	return func(shop int64) string {
		p, err := set.Router.PodOf(shop)
		if err != nil {
			return ""
		}
		return p.ID()
	}
}

func serverPods(set *podset.Set) []server.Pod {
	var pods []server.Pod
	for _, p := range set.Pods {
		pods = append(pods, serverPod(p))
	}
	return pods
}

// serverPod is a pod as the two listeners show it.
func serverPod(p *podset.Pod) server.Pod {
	return server.Pod{
		ID: p.Config.ID, Stores: p.Config.StoresID(), Redis: p.Redis, MySQL: p.MySQL,
		Control: func(by string) (server.Control, error) { return controlOf(p, by) },
		State: func() server.State {
			s := p.Router.State()
			return server.State{
				Stamp: s.Stamp, Cut: s.Cut, Why: s.Why, Suspect: s.Suspect, RedisOK: s.RedisOK, MySQLOK: s.MySQLOK,
				Frozen: s.Frozen, Killed: s.Killed, Latch: s.Latch,
			}
		},
		Mirror: func() (int, string) {
			if !p.Router.Stamp().Stage.DualWrite() {
				return 0, "none"
			}
			return p.Router.Queue().Depth(), p.Router.Queue().Breaker()
		},
	}
}

func serveHint(err error) string {
	if errors.Is(err, server.ErrOpenAdmin) {
		return "listen on 127.0.0.1, or name a tokens file (docs/api.md shows one)"
	}
	return "is another router there already? data.listen and admin.listen name the addresses"
}

// untilStopped waits for the signal, and then carries what was taken to its end.
func (a *app) untilStopped(ctx context.Context, srv *server.Server, set *podset.Set, log *slog.Logger, endReloads func()) error {
	var broken error
	select {
	case <-ctx.Done():
	case broken = <-srv.Failed():
	}
	endReloads()
	log.Info("stopping: no new calls, those that were taken are answered")
	answering, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout)
	defer cancel()
	cut := srv.Shutdown(answering)
	if cut != nil {
		log.Error("not every call was answered", "err", cut)
	}
	a.closeSet(ctx, set, log)
	if err := errors.Join(broken, cut); err != nil {
		return &exitError{code: exitFailed, err: fmt.Errorf("serve ended: %w", err), hint: "callers without an answer retry with the same key; start serve again"}
	}
	log.Info("stopped")
	return nil
}

// closeSet gives the mirrors what they lack, within a bound. What is left are gaps, which are counted: catch-up mends them.
func (a *app) closeSet(ctx context.Context, set *podset.Set, log *slog.Logger) {
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := set.Close(closing); err != nil {
		log.Warn("the mirrors did not take everything: catch-up brings them the rest", "err", err)
	}
}
