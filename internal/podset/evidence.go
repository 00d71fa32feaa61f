package podset

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Evidence is all that is known of a difference: as the audit keeps it, and as mend shows it.
type Evidence struct {
	Kind string `json:"kind,omitempty"`
	// ID is whose it is; empty: a bucket's.
	ID     string `json:"id,omitempty"`
	What   string `json:"what"`
	Rounds int    `json:"rounds,omitempty"`
	// Since is when the first of the rounds began in which it was there.
	Since   *time.Time   `json:"since,omitempty"`
	Redis   *RecordView  `json:"redis,omitempty"`
	MySQL   *RecordView  `json:"mysql,omitempty"`
	Buckets []BucketView `json:"buckets,omitempty"`
}

// RecordView is one store's record with all its times.
type RecordView struct {
	ID        string               `json:"id"`
	Shop      int64                `json:"shop"`
	Key       string               `json:"key"`
	Hash      string               `json:"hash"`
	State     string               `json:"state"`
	Outcome   string               `json:"outcome"`
	DecidedBy string               `json:"decided_by"`
	Epoch     uint64               `json:"epoch"`
	Late      bool                 `json:"late,omitempty"`
	Marked    bool                 `json:"marked,omitempty"`
	Lines     []string             `json:"lines"` // item:group:quantity
	Times     map[string]time.Time `json:"times"`
}

// BucketView is a bucket's figures in both stores, or why they are not known.
type BucketView struct {
	Bucket string       `json:"bucket"`
	Redis  *FiguresView `json:"redis,omitempty"`
	MySQL  *FiguresView `json:"mysql,omitempty"`
	Errors []string     `json:"errors,omitempty"`
}

// FiguresView is one store's figures of a bucket.
type FiguresView struct {
	Available int64 `json:"available"`
	Held      int64 `json:"held"`
	OnHand    int64 `json:"on_hand"`
	Version   int64 `json:"version"`
}

// viewOf shows a record; nil where there is none.
func viewOf(r *reservation.Record) *RecordView {
	if r == nil {
		return nil
	}
	v := &RecordView{
		ID: r.ID.String(), Shop: r.Shop, Key: r.Key, Hash: hex.EncodeToString(r.Hash[:]), State: r.State.String(), Outcome: r.Outcome.String(),
		DecidedBy: r.DecidedBy.String(), Epoch: r.Epoch, Late: r.Late, Marked: r.Marked, Lines: []string{}, Times: map[string]time.Time{},
	}
	for _, l := range r.Lines {
		v.Lines = append(v.Lines, fmt.Sprintf("%d:%d:%d", l.Item, l.Group, l.Quantity))
	}
	for name, at := range map[string]time.Time{
		"created": r.CreatedAt, "expires": r.ExpiresAt, "purge": r.PurgeAt, "pinned": r.PinnedAt, "released": r.ReleasedAt,
		"expired": r.ExpiredAt, "claimed": r.ClaimedAt,
	} {
		if !at.IsZero() {
			v.Times[name] = at
		}
	}
	return v
}

// figuresOf shows a bucket in both stores.
func (p *Pod) figuresOf(ctx context.Context, b reservation.Bucket) BucketView {
	v := BucketView{Bucket: b.String()}
	r, err := p.Redis.Availability(ctx, b)
	v.Redis = v.figures("redis", r, err)
	m, err := p.MySQL.Availability(ctx, b)
	v.MySQL = v.figures("mysql", m, err)
	return v
}

func (v *BucketView) figures(store string, a reservation.Availability, err error) *FiguresView {
	if err != nil {
		v.Errors = append(v.Errors, store+": "+err.Error())
		return nil
	}
	return &FiguresView{Available: a.Available, Held: a.Held, OnHand: a.OnHand, Version: a.Version}
}

// evidenceOf gathers what is known of a difference, as JSON.
func (p *Pod) evidenceOf(ctx context.Context, s *streak) string {
	e := Evidence{Kind: string(s.Kind), What: s.What, Rounds: s.rounds, Since: &s.since, Redis: viewOf(s.Redis), MySQL: viewOf(s.MySQL)}
	if s.ID != (reservation.ID{}) {
		e.ID = s.ID.String()
	}
	for i, b := range s.Buckets {
		if i == maxFreezes {
			break
		}
		e.Buckets = append(e.Buckets, p.figuresOf(ctx, b))
	}
	text, err := json.Marshal(e)
	if err != nil { // nothing in it can fail
		return err.Error()
	}
	return string(text)
}
