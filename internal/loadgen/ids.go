package loadgen

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
)

// Map says which id stands for which code and country: the rank, from 1, in byte order, of all goods of all
// recordings of the plan.
type Map struct {
	Items  []string `json:"items"`  // Items[0] is item 1
	Groups []string `json:"groups"` // Groups[0] is group 1
}

// Write prints the map, one id a line.
func (m Map) Write(w io.Writer) error {
	bw := bufio.NewWriter(w)
	for i, country := range m.Groups {
		fmt.Fprintf(bw, "group\t%d\t%s\n", i+1, country)
	}
	for i, code := range m.Items {
		fmt.Fprintf(bw, "item\t%d\t%s\n", i+1, code)
	}
	if err := bw.Flush(); err != nil {
		return fmt.Errorf("write the map: %w", err)
	}
	return nil
}

// ids looks the ranks up.
type ids struct {
	Map
	item, group map[string]int64
}

func newIDs(recs []Recording) ids {
	d := ids{item: make(map[string]int64), group: make(map[string]int64)}
	for _, rec := range recs {
		for _, inv := range rec.Invoices {
			for _, g := range inv.Goods {
				d.item[g.Code], d.group[g.Country] = 0, 0
			}
		}
	}
	d.Items, d.Groups = rank(d.item), rank(d.group)
	return d
}

func rank(set map[string]int64) []string {
	names := slices.Sorted(maps.Keys(set))
	for i, name := range names {
		set[name] = int64(i + 1)
	}
	return names
}
