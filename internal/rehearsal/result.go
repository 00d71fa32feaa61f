package rehearsal

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/twinhold/twinhold/killswitch"
)

// Result is what a rehearsal saw.
type Result struct {
	Pod        string                 `json:"pod"`
	Drill      killswitch.DrillResult `json:"drill"`
	Flip       killswitch.FlipResult  `json:"flip"`
	FlipS      float64                `json:"flip_s"`
	Kill       killswitch.KillResult  `json:"kill"`
	Kept       Kept                   `json:"kept"`
	Buyers     Buyers                 `json:"buyers"`
	Invariants map[string]string      `json:"invariants"`
	Problems   []string               `json:"problems"`
	OK         bool                   `json:"ok"`
}

// Kept counts the holds from before the flip and the kill that were claimed after them.
type Kept struct {
	Held    int `json:"held"`
	Claimed int `json:"claimed"`
}

// Buyers counts what the buyers were told, reserves by the store that decided.
type Buyers struct {
	Granted  map[string]int `json:"granted"`
	Rejected map[string]int `json:"rejected"`
	Claimed  int            `json:"claimed"`
	Released int            `json:"released"`
	Retries  int            `json:"retries"`
}

// WriteText shows a result to a person.
func (r Result) WriteText(w io.Writer) error {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("")
	line("%s, flipped to cutover and killed back, under load, with %d routers", r.Pod, r.Kill.Routers)
	line("")
	line("  drill    killed in %.1f ms, %d of %d routers acknowledged after %.0f ms, rearmed", r.Drill.KillMS, r.Drill.Acks, r.Drill.Routers, r.Drill.AckedMS)
	line("  flip     %s to %s in %.1f s, epoch %d", r.Flip.From, r.Flip.Stage, r.FlipS, r.Flip.Epoch)
	for _, m := range r.Flip.Moves {
		line("           %s -> %s: %s", m.From, m.To, gatesLine(m.Gates))
	}
	line("  kill     stood after %.1f ms, epoch %d, stage %s; acks %d of %d%s", r.Kill.TookMS, r.Kill.Epoch, r.Kill.Stage, r.Kill.Acks, r.Kill.Routers, laggards(r.Kill.Laggards))
	if d := r.Kill.Debt; d != nil {
		line("  debt     %d reservations, %d units that Redis lacks", d.Reservations, d.Units)
	} else {
		line("  debt     unknown: MySQL did not answer in time")
	}
	line("  holds    %d from before the flip and the kill, %d claimed after it, each once", r.Kept.Held, r.Kept.Claimed)
	line("  buyers   granted by redis %d, by mysql %d; rejected by redis %d, by mysql %d; claimed %d, released %d; %d retries",
		r.Buyers.Granted["redis"], r.Buyers.Granted["mysql"], r.Buyers.Rejected["redis"], r.Buyers.Rejected["mysql"],
		r.Buyers.Claimed, r.Buyers.Released, r.Buyers.Retries)
	var inv []string
	for _, k := range slices.Sorted(maps.Keys(r.Invariants)) {
		inv = append(inv, k+" "+r.Invariants[k])
	}
	line("  checked  %s", strings.Join(inv, ", "))
	for _, p := range r.Problems {
		line("  WRONG    %s", p)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

// gatesLine says which gates passed, and what a waived one showed.
func gatesLine(gates []killswitch.Gate) string {
	var passed, rest []string
	for _, g := range gates {
		switch {
		case g.Waived:
			rest = append(rest, g.Name+" waived ("+g.Figure+")")
		case g.Verdict == killswitch.Pass:
			passed = append(passed, g.Name)
		default:
			rest = append(rest, g.Name+" "+string(g.Verdict))
		}
	}
	return strings.Join(append([]string{fmt.Sprintf("%d gates passed (%s)", len(passed), strings.Join(passed, ", "))}, rest...), "\n             ")
}

func laggards(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return ", laggards: " + strings.Join(names, ", ")
}

// Err gives nil, or ErrNotOK with the reasons.
func (r Result) Err() error {
	if r.OK {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrNotOK, strings.Join(r.Problems, "; "))
}
