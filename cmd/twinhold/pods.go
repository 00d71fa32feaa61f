package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/twinhold/twinhold/config"
	"github.com/twinhold/twinhold/internal/podset"
)

// podNamed finds a pod by its id.
func (a *app) podNamed(cfg *config.Config, id string) (*config.Pod, error) {
	if pc, ok := cfg.Pod(id); ok {
		return pc, nil
	}
	names := make([]string, 0, len(cfg.Pods))
	for _, p := range cfg.Pods {
		names = append(names, p.ID)
	}
	slices.Sort(names)
	return nil, &exitError{code: exitFailed, err: fmt.Errorf("there is no pod %q in %s", id, a.configPath), hint: "the pods are: " + strings.Join(names, ", ")}
}

// podOrFirst finds a pod by its id; without one it is the first of the configuration.
func (a *app) podOrFirst(cfg *config.Config, id string) (*config.Pod, error) {
	if id == "" {
		return &cfg.Pods[0], nil
	}
	return a.podNamed(cfg, id)
}

// podsOf is the pod of this id, or all.
func (a *app) podsOf(cfg *config.Config, id string) ([]config.Pod, error) {
	if id == "" {
		return cfg.Pods, nil
	}
	pc, err := a.podNamed(cfg, id)
	if err != nil {
		return nil, err
	}
	return []config.Pod{*pc}, nil
}

// openStores opens the two stores of a pod of the configuration, without a router. Close them with closeLooked.
func (a *app) openStores(ctx context.Context, id string) (*podset.Pod, error) {
	cfg, err := a.loadConfig()
	if err != nil {
		return nil, err
	}
	pc, err := a.podNamed(cfg, id)
	if err != nil {
		return nil, err
	}
	p, err := podset.OpenStores(ctx, cfg, *pc)
	if err != nil {
		return nil, &exitError{code: exitFailed, err: err, hint: "run: twinhold config check --config " + a.configPath}
	}
	return p, nil
}
