package diff

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Sums is what every router of a pod has counted in some hours. Operations = Compared + the gaps, but for the operations
// that are under way.
type Sums struct {
	Operations  int64            `json:"operations"`
	Compared    int64            `json:"compared"`
	Unexplained int64            `json:"unexplained"`
	Verdicts    map[string]int64 `json:"verdicts"`
	Explained   map[string]int64 `json:"explained"`
	Gaps        map[string]int64 `json:"gaps"` // by reason
	Found       map[string]int64 `json:"found"`
	// Unseen is part of Explained: what may be another router's doing, and could not be looked at.
	Unseen int64 `json:"unseen"`
	// RedisMS and MySQLMS are of first reserves; Timed is how many of them there are.
	RedisMS Latency `json:"redis_ms"`
	MySQLMS Latency `json:"mysql_ms"`
	Timed   int64   `json:"timed"`
	// First and Last are the first and the last hour that hold a count (UTC, each by its start); zero if none does.
	First time.Time `json:"first,omitzero"`
	Last  time.Time `json:"last,omitzero"`
	// Routers is the number of router runs that counted.
	Routers int `json:"routers"`
}

// GapTotal is the number of gaps.
func (s Sums) GapTotal() int64 { return Tally{Gaps: s.Gaps}.GapTotal() }

const (
	sqlTallyHours = `SELECT /* conn_tag:diff.sum */ MIN(hour), MAX(hour), COUNT(DISTINCT router) FROM diff_tallies ` +
		`WHERE pod = ? AND (? = 0 OR hour > UTC_TIMESTAMP() - INTERVAL ? SECOND - INTERVAL 1 HOUR)`
	sqlSumHours = `SELECT /* conn_tag:diff.sum */ op, kind, name, SUM(n) FROM diff_tallies ` +
		`WHERE pod = ? AND hour BETWEEN ? AND ? GROUP BY op, kind, name`
)

// Sum adds up the tallies of every router: of the hours that any part of the last since lies in, by MySQL's clock; of
// all hours if since is zero.
func (t *TallyTable) Sum(ctx context.Context, since time.Duration) (Sums, error) {
	seconds := int64(since / time.Second)
	var first, last *time.Time
	var sums Sums
	err := t.DB.QueryRowContext(ctx, sqlTallyHours, t.Pod, seconds, seconds).Scan(&first, &last, &sums.Routers)
	if err != nil {
		return Sums{}, fmt.Errorf("read the hours of the tallies of pod %s: %w", t.Pod, err)
	}
	n := map[cell]int64{}
	if first != nil {
		sums.First, sums.Last = *first, *last
		if n, err = t.cells(ctx, sqlSumHours, t.Pod, sums.First, sums.Last); err != nil {
			return Sums{}, err
		}
	}
	for c, v := range n {
		if c.kind == kindRedisMS {
			sums.Timed += v
		}
	}
	tally := tallyOf(n)
	sums.Operations, sums.Compared, sums.Unexplained = tally.Operations, tally.Compared, tally.Unexplained
	sums.Verdicts, sums.Explained, sums.Gaps, sums.Found = tally.Verdicts, tally.Explained, tally.Gaps, tally.Found
	sums.Unseen, sums.RedisMS, sums.MySQLMS = tally.Unseen, tally.RedisMS, tally.MySQLMS
	return sums, nil
}

// cells reads summed counts.
func (t *TallyTable) cells(ctx context.Context, query string, args ...any) (n map[cell]int64, err error) {
	rows, err := t.DB.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("read the tallies of pod %s: %w", t.Pod, err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	n = map[cell]int64{}
	for rows.Next() {
		var op, kindName, name string
		var v int64
		if err := rows.Scan(&op, &kindName, &name, &v); err != nil {
			return nil, fmt.Errorf("read the tallies of pod %s: %w", t.Pod, err)
		}
		c, err := parseCell(op, kindName, name)
		if err != nil {
			return nil, err
		}
		n[c] += v
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the tallies of pod %s: %w", t.Pod, err)
	}
	return n, nil
}
