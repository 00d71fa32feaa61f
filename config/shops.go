package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ShopRange is a run of shop ids, both ends included.
type ShopRange struct {
	First, Last int64
}

// String gives the range as the file writes it.
func (r ShopRange) String() string {
	if r.First == r.Last {
		return strconv.FormatInt(r.First, 10)
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// ParseShopRange reads "1500" or "1-999".
func ParseShopRange(s string) (ShopRange, error) {
	r, err := parseShops(s)
	if err != nil {
		return ShopRange{}, fmt.Errorf("%q %w", clip(s), err)
	}
	return r, nil
}

// parseShops leaves the text itself out of its errors.
func parseShops(s string) (ShopRange, error) {
	first, last, ranged := strings.Cut(s, "-")
	if !ranged {
		last = first
	}
	lo, ok1 := shopID(first)
	hi, ok2 := shopID(last)
	switch {
	case !ok1 || !ok2:
		return ShopRange{}, errors.New(`is not a shop or a range of shops: write "1500" or "1-999", positive whole numbers`)
	case lo > hi:
		return ShopRange{}, errors.New("runs backwards: write the lower end first")
	default:
		return ShopRange{First: lo, Last: hi}, nil
	}
}

func shopID(s string) (int64, bool) {
	id, err := strconv.ParseInt(s, 10, 64)
	return id, err == nil && id > 0 && s[0] != '+'
}

// ownedRange is a range with the pod that serves it, by index, and its place in the file.
type ownedRange struct {
	ShopRange
	pod, index int
}

// sortRanges puts every pod's ranges into one order.
func sortRanges(pods []Pod) []ownedRange {
	var all []ownedRange
	for p, pod := range pods {
		for i, r := range pod.Shops {
			if r != (ShopRange{}) { // the zero range stands for one that was a mistake
				all = append(all, ownedRange{ShopRange: r, pod: p, index: i})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b ownedRange) int { return cmp.Compare(a.First, b.First) })
	return all
}
