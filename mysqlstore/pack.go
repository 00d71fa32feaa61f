package mysqlstore

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/twinhold/twinhold/reservation"
)

// jsonRows writes rows of whole numbers as the JSON list that JSON_TABLE reads.
func jsonRows(rows [][]int64) string {
	b := make([]byte, 0, 2+24*len(rows))
	b = append(b, '[')
	for n, row := range rows {
		if n > 0 {
			b = append(b, ',')
		}
		b = append(b, '[')
		for m, v := range row {
			if m > 0 {
				b = append(b, ',')
			}
			b = strconv.AppendInt(b, v, 10)
		}
		b = append(b, ']')
	}
	return string(append(b, ']'))
}

// jsonList writes whole numbers as a JSON list.
func jsonList(values []int64) string {
	b := []byte{'['}
	for n, v := range values {
		if n > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, v, 10)
	}
	return string(append(b, ']'))
}

// jsonHex writes ids as a JSON list of hexadecimal text.
func jsonHex(ids []reservation.ID) string {
	b := []byte{'['}
	for n, id := range ids {
		if n > 0 {
			b = append(b, ',')
		}
		b = append(b, '"')
		b = hex.AppendEncode(b, id[:])
		b = append(b, '"')
	}
	return string(append(b, ']'))
}

func jsonBucketList(buckets []reservation.Bucket) string {
	rows := make([][]int64, len(buckets))
	for n, b := range buckets {
		rows[n] = []int64{b.Shop, b.Item, b.Group}
	}
	return jsonRows(rows)
}

// jsonLines writes lines with their quantity.
func jsonLines(shop int64, lines []reservation.Line) string {
	rows := make([][]int64, len(lines))
	for n, l := range lines {
		rows[n] = []int64{shop, l.Item, l.Group, l.Quantity}
	}
	return jsonRows(rows)
}

func jsonChanges(changes []reservation.Change) string {
	rows := make([][]int64, len(changes))
	for n, c := range changes {
		rows[n] = []int64{c.Bucket.Shop, c.Bucket.Item, c.Bucket.Group, c.Delta, c.Version}
	}
	return jsonRows(rows)
}

// packCart is the lines as the column keeps them: [[item,group,quantity],...].
func packCart(lines []reservation.Line) []byte {
	rows := make([][]int64, len(lines))
	for n, l := range lines {
		rows[n] = []int64{l.Item, l.Group, l.Quantity}
	}
	return []byte(jsonRows(rows))
}

func unpackCart(b []byte) ([]reservation.Line, error) {
	rows, err := unpackRows(b, 3)
	if err != nil {
		return nil, err
	}
	lines := make([]reservation.Line, len(rows))
	for n, r := range rows {
		lines[n] = reservation.Line{Item: r[0], Group: r[1], Quantity: r[2]}
		if r[2] <= 0 {
			return nil, fmt.Errorf("line %d has quantity %d", n, r[2])
		}
	}
	return lines, nil
}

func packShortages(short []reservation.Shortage) []byte {
	if len(short) == 0 {
		return nil
	}
	rows := make([][]int64, len(short))
	for n, s := range short {
		rows[n] = []int64{s.Item, s.Group, s.Requested, s.Available}
	}
	return []byte(jsonRows(rows))
}

func unpackShortages(b []byte) ([]reservation.Shortage, error) {
	if len(b) == 0 {
		return nil, nil
	}
	rows, err := unpackRows(b, 4)
	if err != nil {
		return nil, err
	}
	short := make([]reservation.Shortage, len(rows))
	for n, r := range rows {
		short[n] = reservation.Shortage{Item: r[0], Group: r[1], Requested: r[2], Available: r[3]}
	}
	return short, nil
}

// packBuckets is a list of buckets as pod_fence keeps it; nil for none.
func packBuckets(buckets []reservation.Bucket) []byte {
	if len(buckets) == 0 {
		return nil
	}
	return []byte(jsonBucketList(buckets))
}

func unpackBuckets(b []byte) ([]reservation.Bucket, error) {
	if len(b) == 0 {
		return nil, nil
	}
	rows, err := unpackRows(b, 3)
	if err != nil {
		return nil, err
	}
	buckets := make([]reservation.Bucket, len(rows))
	for n, r := range rows {
		buckets[n] = reservation.Bucket{Shop: r[0], Item: r[1], Group: r[2]}
	}
	return buckets, nil
}

func unpackRows(b []byte, width int) ([][]int64, error) {
	var rows [][]int64
	if err := json.Unmarshal(b, &rows); err != nil {
		return nil, err
	}
	for n, r := range rows {
		if len(r) != width {
			return nil, fmt.Errorf("row %d has %d figures, not %d", n, len(r), width)
		}
	}
	return rows, nil
}

// verdict is what MySQL would have answered to a mirrored reserve, as the column judged keeps it.
type verdict struct {
	Decision  reservation.Decision   `json:"decision"`
	Levels    []reservation.Level    `json:"levels,omitempty"`
	Shortages []reservation.Shortage `json:"shortages,omitempty"`
	Forced    int64                  `json:"forced,omitempty"`
}

func (v *verdict) pack() ([]byte, error) {
	if v == nil {
		return nil, nil
	}
	return json.Marshal(v)
}

func unpackVerdict(b []byte) (*verdict, error) {
	if len(b) == 0 {
		return nil, nil
	}
	v := new(verdict)
	return v, json.Unmarshal(b, v)
}
