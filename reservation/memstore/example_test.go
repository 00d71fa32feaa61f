package memstore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/twinhold/twinhold/reservation"
	"github.com/twinhold/twinhold/reservation/memstore"
)

// Two buyers want the last three pieces; the second gets them once the first gives up.
func Example() {
	if err := lastPieces(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// first: granted
	// second: rejected, 1 left
	// first: released
	// third: granted
	// third: claimed, 0 on hand
}

func lastPieces(ctx context.Context) error {
	store, err := memstore.New(memstore.Options{Clock: time.Now})
	if err != nil {
		return err
	}
	stamp := reservation.Stamp{Epoch: 1, Stage: reservation.Complete}
	if _, err := store.InitFence(ctx, stamp); err != nil {
		return err
	}
	bucket := reservation.Bucket{Shop: 1, Item: 1001, Group: 1}
	if _, _, err := store.Stock(ctx, stamp, []reservation.Stocking{{Bucket: bucket, Quantity: 3}}); err != nil {
		return err
	}
	reserve := func(key string, quantity int64) (reservation.Record, error) {
		limits := reservation.Limits{DefaultTTL: 10 * time.Minute}
		req, err := reservation.NewRequest(1, key, []reservation.Line{{Item: 1001, Group: 1, Quantity: quantity}}, 0, limits)
		if err != nil {
			return reservation.Record{}, err
		}
		id, err := reservation.NewID()
		if err != nil {
			return reservation.Record{}, err
		}
		res, err := store.Reserve(ctx, stamp, id, req)
		return res.Record, err
	}

	first, err := reserve("cart-1", 2)
	if err != nil {
		return err
	}
	fmt.Println("first:", first.Outcome)
	second, err := reserve("cart-2", 3)
	if err != nil {
		return err
	}
	fmt.Printf("second: %s, %d left\n", second.Outcome, second.Shortages[0].Available)
	released, err := store.Release(ctx, stamp, 1, first.ID)
	if err != nil {
		return err
	}
	fmt.Println("first:", released.Record.State)
	third, err := reserve("cart-3", 3)
	if err != nil {
		return err
	}
	fmt.Println("third:", third.Outcome)
	claimed, err := store.Claim(ctx, stamp, 1, third.ID)
	if err != nil {
		return err
	}
	figures, err := store.Availability(ctx, bucket)
	if err != nil {
		return err
	}
	fmt.Printf("third: %s, %d on hand\n", claimed.Record.State, figures.OnHand)
	return nil
}
