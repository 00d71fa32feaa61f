package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/twinhold/twinhold/config"
	"github.com/twinhold/twinhold/internal/devpods"
	"github.com/twinhold/twinhold/internal/loadgen"
	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/internal/replay"
)

type replayFlags struct {
	orders            []string
	stock, speed, pod string
	clients, repeat   int
	devstack, ids     bool
	keyPrefix         string
}

func newReplayCmd(a *app) *cobra.Command {
	f := replayFlags{}
	cmd := &cobra.Command{
		Use:   "replay --orders FILE",
		Short: "Send recorded orders through the router, compare the stores, check the invariants",
		Long: "Sends a file of recorded orders (CSV: InvoiceNo,StockCode,Quantity,InvoiceDate,Country; or JSON lines of\n" +
			"requests) through the router into both stores, then compares every outcome and computes the invariants from\n" +
			"the stores themselves. Carts reserve; most claim, some release, some are left to expire; one request in 20 is\n" +
			"sent again with its key; cancellations release or bring stock back; write-offs take stock away.\n" +
			"Exit 0: all is well. Exit 1: an error, or something is wrong; the result says what.",
		Example: "  twinhold replay --devstack --orders testdata/traffic/online-retail-2011-12-05.csv --stock scarce --repeat 20 --clients 32",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.replay(cmd.Context(), f) },
	}
	fl := cmd.Flags()
	fl.StringArrayVar(&f.orders, "orders", nil, "the recorded orders, a `FILE`; more than once for several days")
	fl.StringVar(&f.stock, "stock", "scarce", "`scarce|plenty|N`: 60% of what is wanted of the wanted buckets, all of it, or N of each")
	fl.StringVar(&f.speed, "speed", "max", "`max|N`: as fast as the mirror keeps up, or N operations a second come what may")
	fl.IntVar(&f.clients, "clients", 16, "callers at once")
	fl.IntVar(&f.repeat, "repeat", 1, "copies that run at once, with distinct keys, over as many times the stock")
	fl.StringVar(&f.pod, "pod", "", "the pod that gets the orders; default: the first of the configuration")
	fl.BoolVar(&f.devstack, "devstack", false, "on private servers that are stopped at the end")
	fl.BoolVar(&f.ids, "map", false, "print which code and country became which id, too")
	fl.StringVar(&f.keyPrefix, "key-prefix", "", "stands before every key, so that a file can be sent again to the same stores")
	return cmd
}

func (f replayFlags) parse() (loadgen.Stock, float64, error) {
	stock, err := loadgen.ParseStock(f.stock)
	if err != nil {
		return stock, 0, &exitError{code: exitFailed, err: fmt.Errorf("--stock: %w", err), hint: "use scarce, plenty or a whole number"}
	}
	if len(f.orders) == 0 {
		return stock, 0, &exitError{code: exitFailed, err: errors.New("--orders is missing"), hint: "name a file of recorded orders: --orders testdata/traffic/online-retail-2011-12-05.csv"}
	}
	if f.clients < 1 || f.repeat < 1 {
		return stock, 0, &exitError{code: exitFailed, err: errors.New("--clients and --repeat are whole numbers from 1"), hint: "leave them out for 16 clients and one copy"}
	}
	if f.speed == "max" {
		return stock, 0, nil
	}
	speed, err := strconv.ParseFloat(f.speed, 64)
	if err != nil || !(speed > 0 && speed <= 1e6) {
		return stock, 0, &exitError{code: exitFailed, err: fmt.Errorf("--speed %q is neither max nor operations a second", f.speed), hint: "use --speed max, or a number from 1 to 1000000"}
	}
	return stock, speed, nil
}

// pods of the command: private ones, or those of the configuration.
func (a *app) openPods(ctx context.Context, private bool, opt devpods.Options, log *slog.Logger, only string) (*podset.Set, *config.Config, func() error, error) {
	stop := func() error { return nil }
	var cfg *config.Config
	if private {
		pods, err := devpods.Start(ctx, opt)
		if err != nil {
			return nil, nil, nil, err
		}
		cfg, stop = pods.Config, pods.Close
		opt.Progress("servers: " + pods.Versions)
	} else {
		var err error
		if cfg, err = a.loadConfig(); err != nil {
			return nil, nil, nil, err
		}
		if _, err := a.podsOf(cfg, only); err != nil {
			return nil, nil, nil, err
		}
	}
	o := podset.Options{Logger: log, Only: only}
	if private {
		o.Router = "router-1"
	}
	set, err := podset.Open(ctx, cfg, o)
	if err != nil {
		return nil, nil, nil, errors.Join(&exitError{code: exitFailed, err: err, hint: openHint(err, a.configPath)}, stop())
	}
	closeAll := func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		return errors.Join(set.Close(ctx), stop())
	}
	return set, cfg, closeAll, nil
}

// closeTimeout bounds what the end of a command waits for: the mirror's queue, claims under way.
const closeTimeout = 10 * time.Second

func (a *app) replay(ctx context.Context, f replayFlags) (err error) {
	stock, speed, err := f.parse()
	if err != nil {
		return err
	}
	recs := make([]loadgen.Recording, 0, len(f.orders))
	for _, name := range f.orders {
		rec, err := loadgen.ReadFile(name)
		if err != nil {
			return &exitError{code: exitFailed, err: err, hint: "docs/orders.md says what a file of orders holds"}
		}
		recs = append(recs, rec)
	}
	if a.mapOnly(f) {
		return a.printMap(recs, stock)
	}
	// A file that cannot be sent is refused before anything is started.
	if _, err := loadgen.NewPlan(loadgen.PlanOptions{Shop: 1, Stock: stock, Repeat: f.repeat, KeyPrefix: f.keyPrefix}, recs...); err != nil {
		return &exitError{code: exitFailed, err: err, hint: "mend the file, or send fewer copies; nothing was sent"}
	}
	progress := newProgress(a.err)
	defer progress.end()
	set, cfg, closeAll, err := a.openPods(ctx, f.devstack, devpods.Options{Short: true, Progress: progress.phase}, progress.logger(), f.pod)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	pod := set.Pods[0]
	plan, err := loadgen.NewPlan(planOptions(cfg, pod, f, stock), recs...)
	if err != nil {
		return &exitError{code: exitFailed, err: err, hint: "mend the file, or send fewer copies"}
	}
	set.Router.Start()
	res, err := replay.Run(ctx, set, pod, plan, replay.Options{
		Clients: f.clients, Speed: speed, KeyPrefix: f.keyPrefix, Phase: progress.phase, Progress: progress.bar,
	})
	progress.end()
	switch {
	case errors.Is(err, replay.ErrStocked):
		return &exitError{code: exitFailed, err: err, hint: "add --key-prefix NAME"}
	case errors.Is(err, replay.ErrTaken):
		return &exitError{code: exitFailed, err: err, hint: "nothing was sent"}
	case err != nil:
		return &exitError{code: exitFailed, err: err, hint: "run: twinhold doctor"}
	}
	if f.ids {
		res.Map = &plan.Map
	}
	return a.printReplay(res)
}

func planOptions(cfg *config.Config, pod *podset.Pod, f replayFlags, stock loadgen.Stock) loadgen.PlanOptions {
	// A hold that is left to expire gets the shortest TTL that the payment bounds allow, and a little more.
	shortest := cfg.Payment.Sum() + 300*time.Millisecond
	return loadgen.PlanOptions{
		Shop: pod.Config.Shops[0].First, Stock: stock, Repeat: f.repeat, ExpireTTL: shortest, KeyPrefix: f.keyPrefix,
	}
}

func (a *app) printReplay(res replay.Result) error {
	var err error
	if a.format == formatJSON {
		err = a.printJSON(res)
	} else {
		err = a.printReplayText(res)
	}
	if err != nil {
		return err
	}
	if err := res.Err(); err != nil {
		return &exitError{code: exitFailed, err: err, hint: "the result names each problem; samples are in --format json"}
	}
	return nil
}

func (a *app) printReplayText(res replay.Result) error {
	if res.Map != nil {
		if err := res.Map.Write(a.out); err != nil {
			return err
		}
	}
	return res.WriteText(a.out)
}

// mapOnly tells whether there is nothing to send to: then --map alone is what was asked for.
func (a *app) mapOnly(f replayFlags) bool {
	if !f.ids || f.devstack {
		return false
	}
	_, err := os.Stat(a.configPath)
	return errors.Is(err, fs.ErrNotExist)
}

// printMap prints which code and which country became which id.
func (a *app) printMap(recs []loadgen.Recording, stock loadgen.Stock) error {
	plan, err := loadgen.NewPlan(loadgen.PlanOptions{Shop: 1, Stock: stock, Repeat: 1}, recs...)
	if err != nil {
		return &exitError{code: exitFailed, err: err, hint: "mend the file"}
	}
	if a.format == formatJSON {
		return a.printJSON(struct {
			Map loadgen.Map `json:"map"`
		}{plan.Map})
	}
	return plan.Map.Write(a.out)
}
