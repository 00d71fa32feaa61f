package reservation_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/twinhold/twinhold/reservation"
)

// section gives the text of docs/states.md between two headings.
func section(t *testing.T, from, to string) string {
	t.Helper()
	text, err := os.ReadFile("../docs/states.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), from)
	if !ok {
		t.Fatalf("docs/states.md has no %q", from)
	}
	if to == "" {
		return rest
	}
	part, _, ok := strings.Cut(rest, to)
	if !ok {
		t.Fatalf("docs/states.md has no %q after %q", to, from)
	}
	return part
}

// arrows reads the steps of a drawing. Those from and to [*] are left to begins and ends.
func arrows(t *testing.T, text string) (steps, begins, ends map[string]bool) {
	t.Helper()
	steps, begins, ends = map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^ +(\S+) --> ([^\s:]+)`).FindAllStringSubmatch(text, -1) {
		switch from, to := m[1], m[2]; {
		case from == "[*]":
			begins[to] = true
		case to == "[*]":
			ends[from] = true
		case steps[from+" "+to]:
			t.Errorf("the step from %s to %s is drawn twice", from, to)
		default:
			steps[from+" "+to] = true
		}
	}
	return steps, begins, ends
}

func TestDrawingOfStatesIsTheCode(t *testing.T) {
	t.Parallel()
	steps, begins, ends := arrows(t, section(t, "## A reservation's states", "## A pod's stages"))
	want, wantEnds := map[string]bool{}, map[string]bool{}
	for _, from := range reservation.States() {
		last := true
		for _, to := range reservation.States() {
			if from.CanBecome(to) {
				want[from.String()+" "+to.String()] = true
				last = false
			}
		}
		if last {
			wantEnds[from.String()] = true
		}
	}
	if diff := cmp.Diff(want, steps); diff != "" {
		t.Errorf("steps (-code +drawing):\n%s", diff)
	}
	if diff := cmp.Diff(wantEnds, ends); diff != "" {
		t.Errorf("states without a way out (-code +drawing):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]bool{"provisional": true, "held": true, "rejected": true}, begins); diff != "" {
		t.Errorf("first states (-want +drawing):\n%s", diff)
	}
}

func TestTableOfStatesIsTheCode(t *testing.T) {
	t.Parallel()
	text := section(t, "## A reservation's states", "## A pod's stages")
	for _, s := range reservation.States() {
		units := map[bool]string{true: "taken", false: "given back"}[s.TakesUnits()]
		switch {
		case s.Live():
			units = "taken, promised"
		case s == reservation.Rejected:
			units = "none"
		case s == reservation.Claimed:
			units = "deducted"
		}
		row := fmt.Sprintf("| %s | %s | %s | %d |", s, units, yes(s.Final()), s.Rank())
		if !strings.Contains(text, row+"\n") {
			t.Errorf("the table lacks the row\n%s", row)
		}
	}
}

func TestDrawingOfStagesIsTheCode(t *testing.T) {
	t.Parallel()
	steps, begins, _ := arrows(t, section(t, "## A pod's stages", ""))
	want := map[string]bool{}
	for _, from := range reservation.Stages() {
		for _, to := range reservation.Stages() {
			if from.CanMoveTo(to) {
				want[from.String()+" "+to.String()] = true
			}
		}
	}
	if diff := cmp.Diff(want, steps); diff != "" {
		t.Errorf("flips (-code +drawing):\n%s", diff)
	}
	if !begins["legacy"] || len(begins) != 1 {
		t.Errorf("first stages drawn: %v; want legacy", begins)
	}
}

func TestTableOfRoutesIsTheCode(t *testing.T) {
	t.Parallel()
	text := section(t, "## A pod's stages", "")
	when := map[reservation.When]string{
		reservation.Never: "never", reservation.AfterAnswer: "after the answer",
		reservation.BeforeAnswer: "before the answer", reservation.Within: "within",
	}
	rows := 0
	for _, s := range reservation.Stages() {
		for _, o := range reservation.Ops() {
			r := s.Route(o)
			row := fmt.Sprintf("| %s | %s | %s | %s | %s |", s, o, r.Decides, yes(r.Both), when[r.Mirror])
			if !strings.Contains(text, row+"\n") {
				t.Errorf("the table lacks the row\n%s", row)
			}
			rows++
		}
	}
	if got := len(regexp.MustCompile(`(?m)^\| (legacy|shadow|handover|cutover|complete) \|`).FindAllString(text, -1)); got != rows {
		t.Errorf("the table has %d rows; want %d", got, rows)
	}
}

func yes(b bool) string { return map[bool]string{true: "yes", false: "no"}[b] }
