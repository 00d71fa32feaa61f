package legacyredis

import "github.com/twinhold/twinhold/reservation"

// changesOf gives a deduction's changes, from its figures where the ledger does not tell them yet.
func changesOf(rec reservation.Record, d reservation.Deduction) []reservation.Change {
	if len(d.Changes) > 0 || d.State != reservation.Claimed {
		return d.Changes
	}
	var out []reservation.Change
	for i, l := range rec.Lines {
		if i < len(d.Figures) {
			out = append(out, reservation.Change{Bucket: l.Bucket(rec.Shop), Delta: -l.Quantity, Version: d.Figures[i].Version})
		}
	}
	return out
}

// changeOf is the same for an adjustment.
func changeOf(adj reservation.Adjustment, res reservation.AdjustResult) reservation.Change {
	if res.Change != (reservation.Change{}) {
		return res.Change
	}
	return reservation.Change{Bucket: adj.Bucket, Delta: adj.Delta, Version: res.Figures.Version}
}
