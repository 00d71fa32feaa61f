package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/twinhold/twinhold/config"
	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/internal/server"
	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/router"
)

// callTimeout bounds what a person waits for one answer.
const callTimeout = 10 * time.Second

// podOf reads the configuration and finds the pod of a shop.
func (a *app) podOf(shop int64) (*config.Config, *config.Pod, error) {
	cfg, err := a.loadConfig()
	if err != nil {
		return nil, nil, err
	}
	if err := (reservation.Bucket{Shop: shop, Item: 1, Group: 1}).Validate(); err != nil {
		return nil, nil, &exitError{code: exitFailed, err: err, hint: "name the shop: --shop N"}
	}
	pc, ok := cfg.PodOf(shop)
	if !ok {
		return nil, nil, &exitError{code: exitFailed, err: fmt.Errorf("shop %d belongs to no pod", shop), hint: "add it to a pod's shops in " + a.configPath}
	}
	return cfg, pc, nil
}

// through carries a person's operation out: through the data API of the router that serves the shop, and through the
// stores, as a router would, while none runs.
func (a *app) through(ctx context.Context, shop int64, f func(context.Context, server.Router) error) error {
	cfg, pc, err := a.podOf(shop)
	if err != nil {
		return err
	}
	if api := a.findRouter(ctx, cfg, pc); api != nil {
		defer api.close()
		return hinted(f(ctx, api))
	}
	return a.onStores(ctx, cfg, pc, func(ctx context.Context, set *podset.Set) error { return f(ctx, set.Router) })
}

// onPod opens the pod of a shop, as a router would, and calls f: for what the data API does not offer.
func (a *app) onPod(ctx context.Context, shop int64, f func(context.Context, *podset.Pod) error) error {
	cfg, pc, err := a.podOf(shop)
	if err != nil {
		return err
	}
	return a.onStores(ctx, cfg, pc, func(ctx context.Context, set *podset.Set) error { return f(ctx, set.Pods[0]) })
}

// onStores opens one pod, as a router would, and calls f. What f started is carried through before it returns.
func (a *app) onStores(ctx context.Context, cfg *config.Config, pc *config.Pod, f func(context.Context, *podset.Set) error) (err error) {
	set, err := podset.Open(ctx, cfg, podset.Options{Only: pc.ID})
	if err != nil {
		return &exitError{code: exitFailed, err: err, hint: openHint(err, a.configPath)}
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		// The answer stands: what the mirror or the tallies lack is for catch-up, and no failure of the command.
		if late := set.Close(closing); late != nil {
			a.warn("the operation is done; what follows it is not: %v", late)
		}
	}()
	for _, n := range set.Pods[0].Notes {
		a.warn("%s", n)
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	a.sweepFirst(call, set.Pods[0])
	return hinted(f(call, set))
}

// sweepFirst ends the holds that are due, as a router does all the time: while none runs, the command is the router.
func (a *app) sweepFirst(ctx context.Context, p *podset.Pod) {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	if _, err := p.Router.Sweep(ctx); err != nil {
		a.warn("holds that are due could not be ended: %v", err)
	}
}

// sweepTimeout bounds the sweep before a person's own operation.
const sweepTimeout = 3 * time.Second

// warn tells a person what does not stop the command. There is nobody left to tell if that fails.
func (a *app) warn(format string, args ...any) {
	_, _ = fmt.Fprintf(a.err, "warning: "+format+"\n", args...)
}

func openHint(err error, config string) string {
	switch {
	case errors.Is(err, router.ErrNoFence):
		return "does the pod name the Redis and the MySQL schema that belong together? twinhold doctor --config " + config + " shows both"
	default:
		return "run: twinhold doctor --config " + config + " (and twinhold migrate, if the tables are not there)"
	}
}

// hinted says what to do about an error of the stores.
func hinted(err error) error {
	var already *exitError
	if err == nil || errors.As(err, &already) {
		return err
	}
	return &exitError{code: exitFailed, err: asFlags(err), hint: hintFor(err)}
}

func hintFor(err error) string {
	switch {
	case isUnknownBucket(err):
		return "stock it with: twinhold stock set, or stock import FILE; nothing was changed"
	case isShort(err):
		return "look at it with: twinhold stock get (--force goes below what is promised); nothing was changed"
	}
	hints := map[reservation.Code]string{
		reservation.CodeInvalidArgument:    "mend the request; nothing was changed",
		reservation.CodeNotFound:           "check the shop and the id: an id is known in its own shop only, until its retention has ended",
		reservation.CodeAlreadyExists:      "nothing was changed",
		reservation.CodeFailedPrecondition: "look at it with: twinhold get; nothing was changed",
		reservation.CodeUnavailable:        "run the same command again, with the same key or id; twinhold doctor says how the stores are",
		reservation.CodeInternal:           "run: twinhold doctor",
	}
	return hints[codeOf(err)]
}

// asFlags names the flag that a person wrote in place of the field of a request.
func asFlags(err error) error {
	var inv *reservation.InvalidError
	if !errors.As(err, &inv) {
		return err
	}
	flags := map[string]string{
		"shopId": "--shop", "itemId": "--item", "groupId": "--group", "idempotencyKey": "--key", "adjustmentId": "--id",
		"delta": "--delta", "ttl": "--ttl", "lines": "--line", "quantity": "--quantity", "reservationId": "ID",
	}
	field := inv.Field
	if flag, ok := flags[field]; ok {
		field = flag
	} else if n, rest, ok := strings.Cut(strings.TrimPrefix(field, "lines["), "]."); ok {
		i, convErr := strconv.Atoi(n)
		if convErr == nil {
			field = fmt.Sprintf("--line number %d: %s", i+1, rest)
		}
	}
	return &reservation.InvalidError{Field: field, Reason: inv.Reason}
}

// parseLine reads ITEM:GROUP:QTY.
func parseLine(s string) (reservation.Line, error) {
	bad := func() error {
		return &exitError{code: exitFailed, err: fmt.Errorf("--line %q is not ITEM:GROUP:QTY", s), hint: "three whole numbers, such as --line 1001:1:2"}
	}
	parts := strings.Split(s, ":")
	if len(parts) != 3 {
		return reservation.Line{}, bad()
	}
	var n [3]int64
	for i, p := range parts {
		v, err := strconv.ParseInt(p, 10, 64)
		if err != nil {
			return reservation.Line{}, bad()
		}
		n[i] = v
	}
	return reservation.Line{Item: n[0], Group: n[1], Quantity: n[2]}, nil
}

type reserveFlags struct {
	shop  int64
	key   string
	lines []string
	ttl   time.Duration
}

func newReserveCmd(a *app) *cobra.Command {
	f := reserveFlags{}
	cmd := &cobra.Command{
		Use:   "reserve --shop S --key K --line ITEM:GROUP:QTY...",
		Short: "Place a hold on stock",
		Long: "Places a hold, all lines or none. The same key with the same request gives the same answer again.\n" +
			"Exit 0: granted. Exit 2: rejected, there is not enough. Exit 1: an error.",
		Example: "  twinhold reserve --shop 1 --key order-17 --line 1001:1:2 --line 1002:1:1 --ttl 10m",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.reserve(cmd.Context(), f) },
	}
	fl := cmd.Flags()
	fl.Int64Var(&f.shop, "shop", 0, "the shop's id")
	fl.StringVar(&f.key, "key", "", "the idempotency key, 1 to 255 bytes")
	fl.StringArrayVar(&f.lines, "line", nil, "`ITEM:GROUP:QTY`; more than once for several lines")
	fl.DurationVar(&f.ttl, "ttl", 0, "how long the hold lasts: more than the payment bounds (timeout + callback_window + clock_skew), max_ttl at most; 0 is the configured default")
	return cmd
}

func (a *app) reserve(ctx context.Context, f reserveFlags) error {
	lines := make([]reservation.Line, 0, len(f.lines))
	for _, s := range f.lines {
		l, err := parseLine(s)
		if err != nil {
			return err
		}
		lines = append(lines, l)
	}
	return a.through(ctx, f.shop, func(ctx context.Context, r server.Router) error {
		res, err := r.Reserve(ctx, f.shop, f.key, lines, f.ttl)
		if err != nil {
			return err
		}
		if err := a.show(reserveAnswer(res)); err != nil {
			return err
		}
		if res.Record.Outcome == reservation.RejectedShort {
			return &exitError{code: exitRefused, err: errors.New("rejected: there is not enough stock"), hint: "see the shortages, or: twinhold stock get"}
		}
		return nil
	})
}

// idCmd makes a command that takes a shop and a reservation's id.
func (a *app) idCmd(use, short, long string, do func(ctx context.Context, shop int64, id reservation.ID) error) *cobra.Command {
	var shop int64
	cmd := &cobra.Command{
		Use:     use + " --shop S ID",
		Short:   short,
		Long:    long,
		Example: "  twinhold " + use + " --shop 1 0198f2a0-7c1e-7abc-8def-0123456789ab",
		Args:    exactArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := reservation.ParseID(args[0])
			if err != nil {
				return hinted(err)
			}
			return do(cmd.Context(), shop, id)
		},
	}
	cmd.Flags().Int64Var(&shop, "shop", 0, "the shop's id")
	return cmd
}

func newClaimCmd(a *app) *cobra.Command {
	return a.idCmd("claim", "Make a hold's deduction permanent, after its payment",
		"Exit 0: claimed. Exit 2: refund_required, the stock is gone. Exit 1: an error; run it again.",
		func(ctx context.Context, shop int64, id reservation.ID) error {
			return a.through(ctx, shop, func(ctx context.Context, r server.Router) error {
				res, err := r.Claim(ctx, shop, id)
				if err != nil {
					return err
				}
				ans := claimAnswerOf(res)
				if err := a.show(ans); err != nil {
					return err
				}
				if ans.State == stateRefund {
					return &exitError{code: exitRefused, err: errors.New("refund required: its stock is gone"), hint: "refund the payment; the reservation has ended"}
				}
				return nil
			})
		})
}

func newReleaseCmd(a *app) *cobra.Command {
	return a.idCmd("release", "Give a hold up", "Exit 0: released, now or before. Exit 1: an error.",
		func(ctx context.Context, shop int64, id reservation.ID) error {
			return a.through(ctx, shop, func(ctx context.Context, r server.Router) error {
				res, err := r.Release(ctx, shop, id)
				if err != nil {
					return err
				}
				return a.show(releaseAnswer{ReservationID: res.Record.ID.String(), State: stateWord(res.Record.State), Replayed: res.Replayed})
			})
		})
}

func newGetCmd(a *app) *cobra.Command {
	var both bool
	cmd := a.idCmd("get", "Show a reservation, as the source of truth has it", "With --both it shows both stores side by side.",
		func(ctx context.Context, shop int64, id reservation.ID) error {
			if both {
				return a.lookAt(ctx, shop, func(ctx context.Context, p *podset.Pod) error { return a.getBoth(ctx, p, shop, id) })
			}
			return a.through(ctx, shop, func(ctx context.Context, r server.Router) error {
				rec, err := r.Get(ctx, shop, id)
				if err != nil {
					return err
				}
				return a.show(recordAnswerOf(rec))
			})
		})
	cmd.Flags().BoolVar(&both, "both", false, "show both stores side by side")
	return cmd
}

func (a *app) getBoth(ctx context.Context, p *podset.Pod, shop int64, id reservation.ID) error {
	look := func(get func(context.Context, int64, reservation.ID) (reservation.Record, error)) func(context.Context) (reservation.Record, error) {
		return func(ctx context.Context) (reservation.Record, error) { return get(ctx, shop, id) }
	}
	rs, ms := askBoth(ctx, look(p.Redis.Get), look(p.MySQL.Get))
	if errors.Is(rs.err, reservation.ErrNotFound) && errors.Is(ms.err, reservation.ErrNotFound) {
		return reservation.ErrNotFound
	}
	return showBoth(a, rs, ms, recordAnswerOf)
}
