package loadgen_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/twinhold/twinhold/internal/loadgen"
)

// A day of orders is read, laid out over scarce stock, and sent.
func Example() {
	day, err := loadgen.Read("day.csv", strings.NewReader(`InvoiceNo,StockCode,Quantity,InvoiceDate,Country
536365,85123A,6,2010-12-01 08:26:00,United Kingdom
536365,POST,1,2010-12-01 08:26:00,United Kingdom
536366,22633,6,2010-12-01 08:28:00,United Kingdom
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	plan, err := loadgen.NewPlan(loadgen.PlanOptions{Shop: 1, Stock: loadgen.Scarce()}, day)
	if err != nil {
		fmt.Println(err)
		return
	}
	stats, err := loadgen.Run(context.Background(), plan, newModel(plan.Stock), loadgen.Options{Clients: 4})
	fmt.Println(stats.Carts.Granted, stats.Carts.Rejected, plan.Recorded.NotGoods, err)
	// Output: 2 0 map[POST:1] <nil>
}
