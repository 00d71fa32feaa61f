package mysqlstore_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/twinhold/twinhold/mysqlstore"
	"github.com/twinhold/twinhold/reservation"
)

// A pod in stage complete: MySQL decides alone. (It is not run here: it needs a server.)
func ExampleOpen() {
	ctx := context.Background()
	const dsn = "twinhold:secret@tcp(127.0.0.1:3306)/pod1"
	if err := mysqlstore.Migrate(ctx, dsn); err != nil {
		log.Fatal(err)
	}
	store, err := mysqlstore.Open(ctx, mysqlstore.Options{DSN: dsn, Pod: "pod-1"})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	fence, err := store.InitFence(ctx, reservation.Stamp{Epoch: 1, Stage: reservation.Complete})
	if err != nil {
		log.Fatal(err)
	}

	req, err := reservation.NewRequest(1, "order-1001", []reservation.Line{{Item: 7, Group: 1, Quantity: 2}}, 10*time.Minute, reservation.Limits{})
	if err != nil {
		log.Fatal(err)
	}
	id, err := reservation.NewID()
	if err != nil {
		log.Fatal(err)
	}
	res, err := store.Reserve(ctx, fence.Stamp, id, req)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(res.Record.Outcome, res.Record.ExpiresAt)
}
