package replay

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/twinhold/twinhold/diff"
)

// maxShown bounds each list that the text shows; the JSON has all of it.
const maxShown = 10

// WriteText shows a result to a person: the answers, the comparison, the invariants, then what is wrong.
func (r Result) WriteText(w io.Writer) error {
	p := &printer{}
	p.line("")
	p.line("%s, stage %s: %d operations in %.1f s", r.Pod, r.Stage, r.Operations, r.TookS)
	p.line("")
	p.line("  carts    %6d granted  %6d rejected  %s", r.Carts.Granted, r.Carts.Rejected, share(r.Carts.Rejected, r.Carts.Granted+r.Carts.Rejected, "rejected"))
	p.line("  granted  %s", list(r.Ended))
	p.line("  stock    %6d adjusted %6d refused", r.Adjust.Adjusted, r.Adjust.Refused)
	p.line("  operations: %s; %d requests were sent again with their key, %d have no known outcome", list(r.ByOp), r.Retries, r.Reserve.Unknown+r.Claim.Unknown+r.Release.Unknown+r.Adjust.Unknown)
	if r.Claim.Late+r.Claim.Conflict+r.Release.Conflict > 0 {
		p.line("  %d late claims, %d claims and %d releases of ended reservations", r.Claim.Late, r.Claim.Conflict, r.Release.Conflict)
	}
	if r.HeldStill > 0 {
		p.line("  %d abandoned holds expire later than this replay waited", r.HeldStill)
	}
	r.writeComparison(p)
	r.writeInvariants(p)
	r.writeProblems(p)
	_, err := io.WriteString(w, p.String())
	if err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

func (r Result) writeComparison(p *printer) {
	if r.Compared+r.Gaps.Total == 0 {
		p.line("")
		p.line("nothing is compared in stage %s", r.Stage)
		return
	}
	p.line("")
	p.line("compared    %6d of %d   gaps %d%s", r.Compared, r.Operations, r.Gaps.Total, counts(r.Gaps.ByReason))
	for _, v := range slices.Sorted(maps.Keys(r.Verdicts)) {
		p.line("  %-15s %6d", v, r.Verdicts[v])
	}
	p.line("explained   %6d%s", sum(r.Explained), counts(r.Explained))
	p.line("unexplained %6d", r.Unexplained)
	p.line("catch-up    %6d records walked, %d repaired%s", r.CatchUp.Walked, sum(r.CatchUp.Repaired), counts(r.CatchUp.Repaired))
	if n := sum(r.Backlog.Repaired); n > 0 {
		p.line("before      %6d records that earlier runs had left out were brought over first%s", n, counts(r.Backlog.Repaired))
	}
	p.line("")
	p.line("reserve, ms      p50      p99")
	for _, store := range []string{"redis", "mysql"} {
		l := r.LatencyMS[store]
		p.line("  %-10s %8.2f %8.2f", store, l.P50, l.P99)
	}
	if i := slices.IndexFunc(r.Samples, func(s diff.Sample) bool { return s.Explanation.Kind != diff.None }); i >= 0 {
		p.line("")
		p.line("one explained difference, with its evidence:")
		writeSample(p, r.Samples[i])
	}
}

func writeSample(p *printer, s diff.Sample) {
	p.line("  %s %s: the truth %s, the mirror %s -> %s, explained as %s", s.Op, s.ID, s.Truth.Decision, s.Mirror.Decision, s.Verdict, s.Explanation.Kind)
	for _, b := range s.Explanation.Buckets {
		p.line("    bucket %s: wanted %d; the truth saw %d, the mirror %d; once settled %d and %d", b.Bucket, b.Requested, b.TruthSaw, b.MirrorSaw, b.SettledTruth, b.SettledMirror)
	}
	for i, o := range s.Explanation.Overlapping {
		if i == 3 {
			p.line("    and %d more overlapped", len(s.Explanation.Overlapping)-i+s.Explanation.MoreOverlapping)
			break
		}
		p.line("    overlapped by %s %s (%+d in %s)", o.Op, o.ID, o.Delta, o.Bucket)
	}
	if s.Explanation.Note != "" {
		p.line("    %s", s.Explanation.Note)
	}
}

func (r Result) writeInvariants(p *printer) {
	p.line("")
	p.line("invariants, from the stores' own tables and keys:")
	parts := make([]string, 0, len(r.Invariants))
	// By length, then by name: I11 comes after I6.
	names := slices.SortedFunc(maps.Keys(r.Invariants), func(a, b string) int {
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
	for _, n := range names {
		parts = append(parts, n+" "+r.Invariants[n])
	}
	p.line("  %s", strings.Join(parts, "   "))
}

func (r Result) writeProblems(p *printer) {
	if len(r.Problems) == 0 {
		return
	}
	p.line("")
	p.line("what is wrong:")
	for i, problem := range r.Problems {
		if i == maxShown {
			p.line("  and %d more (--format json shows all)", len(r.Problems)-i)
			break
		}
		p.line("  - %s", problem)
	}
	shown := 0
	for _, s := range r.Samples {
		if s.Explanation.Kind == diff.None && shown < maxShown {
			writeSample(p, s)
			shown++
		}
	}
}

// printer gathers lines.
type printer struct{ strings.Builder }

func (p *printer) line(format string, args ...any) {
	fmt.Fprintf(&p.Builder, strings.TrimRight(format, " ")+"\n", args...)
}

func share(n, of int, what string) string {
	if of == 0 {
		return ""
	}
	return fmt.Sprintf("(%.0f%% %s)", 100*float64(n)/float64(of), what)
}

func sum[N int | int64](m map[string]N) N {
	var n N
	for _, v := range m {
		n += v
	}
	return n
}

func counts[N int | int64](m map[string]N) string {
	if len(m) == 0 {
		return ""
	}
	return "   (" + list(m) + ")"
}

func list[N int | int64](m map[string]N) string {
	parts := make([]string, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, m[k]))
	}
	return strings.Join(parts, ", ")
}
