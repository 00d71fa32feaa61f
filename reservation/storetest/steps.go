package storetest

import (
	"fmt"

	"pgregory.net/rapid"

	"github.com/twinhold/twinhold/reservation"
)

// step draws one operation and carries it out on both stores.
func (m *modelled) step(rt *rapid.T) {
	switch n := rapid.IntRange(0, 99).Draw(rt, "what"); {
	case n < 40:
		m.reserveBoth(m.drawKey(rt), longTTL, m.drawLines(rt))
	case n < 58:
		m.claimBoth(m.drawID(rt))
	case n < 75:
		m.releaseBoth(m.drawID(rt))
	case n < 87:
		m.adjustBoth(m.drawAdjustment(rt))
	case n < 92:
		m.getBoth(m.drawID(rt))
	default:
		m.expiring(rt)
	}
	m.sameFigures()
}

// drawKey draws from few keys, so that retries and conflicts are common, and new ones still come up.
func (m *modelled) drawKey(rt *rapid.T) string {
	return fmt.Sprintf("k%d", rapid.IntRange(0, 40).Draw(rt, "key"))
}

func (m *modelled) drawLines(rt *rapid.T) []reservation.Line {
	lines := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) reservation.Line {
		return line(rapid.Int64Range(1, m.items).Draw(rt, "item"), rapid.Int64Range(1, 4).Draw(rt, "quantity"))
	}), 1, 3).Draw(rt, "lines")
	if rapid.IntRange(0, 29).Draw(rt, "unknown") == 0 {
		lines = append(lines, line(99, 1))
	}
	return lines
}

// drawID draws a reservation that exists, mostly: now and then an unknown one, or the shop that has nothing.
func (m *modelled) drawID(rt *rapid.T) (shop int64, id reservation.ID) {
	shop = m.shops[0]
	if rapid.IntRange(0, 19).Draw(rt, "other shop") == 0 {
		shop = m.shops[1]
	}
	if len(m.ids) == 0 || rapid.IntRange(0, 19).Draw(rt, "unknown id") == 0 {
		return shop, m.id()
	}
	return shop, rapid.SampledFrom(m.ids).Draw(rt, "id")
}

func (m *modelled) drawAdjustment(rt *rapid.T) reservation.Adjustment {
	adj := reservation.Adjustment{
		ID:     fmt.Sprintf("a%d", rapid.IntRange(0, 12).Draw(rt, "adjustment")),
		Bucket: m.bucket(rapid.Int64Range(1, m.items).Draw(rt, "item")),
		Delta:  rapid.SampledFrom([]int64{-7, -3, -1, 1, 2, 5}).Draw(rt, "delta"),
		Force:  rapid.IntRange(0, 4).Draw(rt, "force") == 0,
	}
	if adj.Force {
		adj.ID = forcedPrefix + adj.ID
	}
	return adj
}

// expiring makes a hold that runs out. Something reaches it before the sweeper, or nothing; then both stores sweep;
// and the ids drawn later meet it again.
func (m *modelled) expiring(rt *rapid.T) {
	got := m.reserveBoth(m.key(), shortTTL, m.drawLines(rt))
	if got.Decision != 0 || got.Outcome != reservation.Granted {
		return
	}
	m.pass(m.get(got.ID).ExpiresAt)
	m.clock.now = m.clock.now.Add(2 * shortTTL)
	switch rapid.IntRange(0, 3).Draw(rt, "before the sweep") {
	case 0:
		m.claimBoth(m.shop, got.ID)
	case 1:
		m.releaseBoth(m.shop, got.ID)
	default:
	}
	m.sweepBoth()
}
