package main

import (
	"bufio"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/twinhold/twinhold/internal/loadgen"
	"github.com/twinhold/twinhold/internal/podset"
	"github.com/twinhold/twinhold/internal/server"
	"github.com/twinhold/twinhold/reservation"
)

func newStockCmd(a *app) *cobra.Command {
	cmd := newGroupCmd(a, "stock", "Look at stock, receive it, count it, write it off")
	cmd.Example = "  twinhold stock import stock.csv\n  twinhold stock get --shop 1 --item 1001 --group 1"
	cmd.AddCommand(newStockImportCmd(a), newStockSetCmd(a), newStockAdjustCmd(a), newStockGetCmd(a))
	return cmd
}

// bucketFlags name a bucket.
func bucketFlags(cmd *cobra.Command, b *reservation.Bucket) {
	cmd.Flags().Int64Var(&b.Shop, "shop", 0, "the shop's id")
	cmd.Flags().Int64Var(&b.Item, "item", 0, "the item's id")
	cmd.Flags().Int64Var(&b.Group, "group", 0, "the group's id")
}

func newStockGetCmd(a *app) *cobra.Command {
	var b reservation.Bucket
	var both bool
	cmd := &cobra.Command{
		Use:     "get --shop S --item I --group G",
		Short:   "Show a bucket's stock, as the source of truth has it",
		Example: "  twinhold stock get --shop 1 --item 1001 --group 1 --both",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if both {
				return a.onBucket(b, func() error {
					return a.lookAt(cmd.Context(), b.Shop, func(ctx context.Context, p *podset.Pod) error { return a.stockGetBoth(ctx, p, b) })
				})
			}
			return a.onBucket(b, func() error {
				return a.through(cmd.Context(), b.Shop, func(ctx context.Context, r server.Router) error { return a.stockGet(ctx, r, b) })
			})
		},
	}
	bucketFlags(cmd, &b)
	cmd.Flags().BoolVar(&both, "both", false, "show both stores side by side")
	return cmd
}

func (a *app) onBucket(b reservation.Bucket, f func() error) error {
	if err := b.Validate(); err != nil {
		return &exitError{code: exitFailed, err: err, hint: "name the bucket: --shop S --item I --group G"}
	}
	return f()
}

func (a *app) stockGet(ctx context.Context, r server.Router, b reservation.Bucket) error {
	av, err := r.Availability(ctx, b)
	if err != nil {
		return err
	}
	return a.show(availabilityAnswerOf(av, av.Truth))
}

// figures are a bucket's in one store, with what the store says about the stage.
type figures struct {
	av    reservation.Availability
	fence reservation.Fence
}

func (a *app) stockGetBoth(ctx context.Context, p *podset.Pod, b reservation.Bucket) error {
	look := func(fence func(context.Context) (reservation.Fence, error), get func(context.Context, reservation.Bucket) (reservation.Availability, error)) func(context.Context) (figures, error) {
		return func(ctx context.Context) (f figures, err error) {
			if f.fence, err = fence(ctx); err == nil {
				f.av, err = get(ctx, b)
			}
			return f, err
		}
	}
	rs, ms := askBoth(ctx, look(p.Redis.ReadFence, p.Redis.Availability), look(p.MySQL.ReadFence, p.MySQL.Availability))
	if isUnknownBucket(rs.err) && isUnknownBucket(ms.err) {
		return ms.err
	}
	truth := truthOfFences(p, rs.value.fence, ms.value.fence)
	return showBoth(a, rs, ms, func(f figures) availabilityAnswer { return availabilityAnswerOf(f.av, truth) })
}

// truthOfFences is the truth that the newer of the fences means. Where no store tells, it is the one declared.
func truthOfFences(p *podset.Pod, fences ...reservation.Fence) reservation.Truth {
	newest := reservation.Fence{Stamp: reservation.Stamp{Stage: p.Config.DeclaredStage()}}
	for _, f := range fences {
		if f.Epoch > newest.Epoch {
			newest = f
		}
	}
	return newest.Stage.Truth()
}

func newStockAdjustCmd(a *app) *cobra.Command {
	var adj reservation.Adjustment
	cmd := &cobra.Command{
		Use:   "adjust --shop S --item I --group G --delta D --id A",
		Short: "Receive stock (a positive delta) or write it off (a negative one), once per id",
		Long: "The same id with the same delta is carried out once. A negative delta never goes below what is promised, unless\n" +
			"forced; a forced one is counted and alerted, and buyers may have to be refunded.",
		Example: "  twinhold stock adjust --shop 1 --item 1001 --group 1 --delta -3 --id writeoff-2026-01-31",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.onBucket(adj.Bucket, func() error {
				return a.through(cmd.Context(), adj.Bucket.Shop, func(ctx context.Context, r server.Router) error { return a.adjust(ctx, r, adj) })
			})
		},
	}
	bucketFlags(cmd, &adj.Bucket)
	cmd.Flags().Int64Var(&adj.Delta, "delta", 0, "the change, not 0")
	cmd.Flags().StringVar(&adj.ID, "id", "", "the adjustment's own id, 1 to 255 bytes")
	cmd.Flags().BoolVar(&adj.Force, "force", false, "go below what is promised")
	return cmd
}

func (a *app) adjust(ctx context.Context, r server.Router, adj reservation.Adjustment) error {
	res, err := r.Adjust(ctx, adj)
	switch {
	case errors.Is(err, reservation.ErrKeyConflict):
		return &exitError{code: exitFailed, err: fmt.Errorf("--id %q was used with another delta or another bucket", adj.ID), hint: "use a new id for a new adjustment; nothing was changed"}
	case err != nil:
		return err
	case res.Replayed:
		a.warn("this id was carried out before: nothing was changed now")
	}
	return a.stockGet(ctx, r, adj.Bucket)
}

func newStockSetCmd(a *app) *cobra.Command {
	var b reservation.Bucket
	var quantity int64
	cmd := &cobra.Command{
		Use:   "set --shop S --item I --group G --quantity N",
		Short: "Set a bucket's stock to what was counted; a new bucket gets its first stock",
		Long: "A stock-take: what is on hand becomes N, by an adjustment of the difference. It never goes below what is held.\n" +
			"A bucket that is not there yet is created with N.",
		Example: "  twinhold stock set --shop 1 --item 1001 --group 1 --quantity 250",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("quantity") {
				return usageError(cmd, errors.New("--quantity is missing"))
			}
			if err := (reservation.Stocking{Bucket: b, Quantity: quantity}).Validate(); err != nil {
				return &exitError{code: exitFailed, err: err, hint: "name the bucket and what was counted"}
			}
			return a.onBucket(b, func() error { return a.stockSet(cmd.Context(), b, quantity) })
		},
	}
	bucketFlags(cmd, &b)
	cmd.Flags().Int64Var(&quantity, "quantity", 0, "what is on hand, 0 or more")
	return cmd
}

// stockSet adjusts a bucket to what was counted, or creates it, which the data API does not do.
func (a *app) stockSet(ctx context.Context, b reservation.Bucket, quantity int64) error {
	take := func() error {
		return a.through(ctx, b.Shop, func(ctx context.Context, r server.Router) error { return a.stockTake(ctx, r, b, quantity) })
	}
	err := take()
	if !isUnknownBucket(err) {
		return err
	}
	created := false
	err = a.onPod(ctx, b.Shop, func(ctx context.Context, p *podset.Pod) error {
		made, _, err := p.Stock(ctx, []reservation.Stocking{{Bucket: b, Quantity: quantity}})
		if created = len(made) > 0; !created || err != nil {
			return err
		}
		av, err := p.MySQL.Availability(ctx, b)
		if err != nil {
			return err
		}
		return a.show(availabilityAnswerOf(av, p.Router.Stamp().Stage.Truth()))
	})
	if err != nil || created {
		return err
	}
	return take() // somebody else was first, or had been interrupted
}

// takeRounds bounds how often a stock-take is put right: each round but the first is one that claims got in between.
const takeRounds = 5

// stockTake adjusts by the difference to what the truth shows, and then to what the ledger says: claims that are under
// way are in the one before they are in the other.
func (a *app) stockTake(ctx context.Context, r server.Router, b reservation.Bucket, quantity int64) error {
	now, err := r.Availability(ctx, b)
	if err != nil {
		return err
	}
	onHand := now.OnHand
	for range takeRounds {
		if onHand == quantity {
			break
		}
		adj := reservation.Adjustment{ID: "stock-take:" + uuid.NewString(), Bucket: b, Delta: quantity - onHand}
		res, err := r.Adjust(ctx, adj)
		if err != nil {
			return err
		}
		onHand = res.Figures.OnHand
	}
	return a.stockGet(ctx, r, b)
}

func newStockImportCmd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "import FILE",
		Short: "Give buckets their first stock in both stores, from a CSV of shop,item,group,quantity",
		Long: "A first line of names (shop,item,group,quantity) may be there or not. Buckets that are stocked already are left\n" +
			"alone and counted, so an import that was interrupted can be run again. A mistake anywhere in the file is told\n" +
			"with its line, and nothing is imported.",
		Example: "  printf 'shop,item,group,quantity\\n1,1001,1,250\\n' > stock.csv && twinhold stock import stock.csv",
		Args:    exactArgs("FILE"),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.stockImport(cmd.Context(), args[0]) },
	}
}

// importBatch is how many buckets one transaction stocks.
const importBatch = 200

type importAnswer struct {
	Imported int `json:"imported"`
	Existing int `json:"existing"`
}

func (i importAnswer) text(w io.Writer) error {
	return writef(w, "%s stocked, %d there already and as before\n", plural(i.Imported, "bucket"), i.Existing)
}

func (a *app) stockImport(ctx context.Context, name string) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	stock, err := readStock(name, func(shop int64) bool { _, ok := cfg.PodOf(shop); return ok })
	if err != nil {
		return &exitError{code: exitFailed, err: err, hint: "mend the file; nothing was imported"}
	}
	byPod := map[string][]reservation.Stocking{}
	for _, s := range stock {
		pc, _ := cfg.PodOf(s.Bucket.Shop) // readStock has looked
		byPod[pc.ID] = append(byPod[pc.ID], s)
	}
	var ans importAnswer
	for _, pod := range slices.Sorted(maps.Keys(byPod)) {
		if err := a.importPod(ctx, byPod[pod], &ans); err != nil {
			return err
		}
	}
	return a.show(ans)
}

func (a *app) importPod(ctx context.Context, list []reservation.Stocking, ans *importAnswer) error {
	return a.onPod(ctx, list[0].Bucket.Shop, func(_ context.Context, p *podset.Pod) error {
		for batch := range slices.Chunk(list, importBatch) {
			bounded, cancel := context.WithTimeout(ctx, callTimeout)
			created, existing, err := p.Stock(bounded, batch)
			cancel()
			if err != nil {
				return err
			}
			ans.Imported += len(created)
			ans.Existing += len(existing)
		}
		return nil
	})
}

// readStock reads the whole file before anything is imported.
func readStock(name string, known func(shop int64) bool) (stock []reservation.Stocking, err error) {
	f, err := loadgen.OpenRegular(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return parseStock(name, f, known)
}

func parseStock(name string, r io.Reader, known func(shop int64) bool) ([]reservation.Stocking, error) {
	rows := csv.NewReader(bufio.NewReader(r))
	rows.FieldsPerRecord = -1
	rows.TrimLeadingSpace = true
	var stock []reservation.Stocking
	seen := map[reservation.Bucket]int{}
	for first := true; ; first = false {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		line, _ := rows.FieldPos(0)
		if first && strings.EqualFold(strings.TrimSpace(strings.TrimPrefix(row[0], "\ufeff")), "shop") {
			continue
		}
		s, err := stockRow(row)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, line, err)
		}
		if !known(s.Bucket.Shop) {
			return nil, fmt.Errorf("%s:%d: shop %d belongs to no pod of the configuration", name, line, s.Bucket.Shop)
		}
		if other, twice := seen[s.Bucket]; twice {
			return nil, fmt.Errorf("%s:%d: bucket %s stands on line %d too: give each bucket one line", name, line, s.Bucket, other)
		}
		seen[s.Bucket] = line
		stock = append(stock, s)
	}
	if len(stock) == 0 {
		return nil, fmt.Errorf("%s: holds no stock: write lines of shop,item,group,quantity", name)
	}
	return stock, nil
}

func stockRow(row []string) (reservation.Stocking, error) {
	if len(row) != 4 {
		return reservation.Stocking{}, fmt.Errorf("has %s: write shop,item,group,quantity", plural(len(row), "field"))
	}
	var n [4]int64
	for i, field := range [4]string{"shop", "item", "group", "quantity"} {
		v, err := strconv.ParseInt(strings.TrimSpace(strings.TrimPrefix(row[i], "\ufeff")), 10, 64)
		if err != nil {
			return reservation.Stocking{}, fmt.Errorf("%s %q is not a whole number", field, row[i])
		}
		n[i] = v
	}
	s := reservation.Stocking{Bucket: reservation.Bucket{Shop: n[0], Item: n[1], Group: n[2]}, Quantity: n[3]}
	return s, s.Validate()
}
