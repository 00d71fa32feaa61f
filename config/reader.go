package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// place is where a value stands in the file.
type place struct{ line, column int }

// read is what one kind of value does with its node.
type read func(n *yaml.Node, path string)

// field is one key of a mapping.
type field struct {
	key  string
	read read
}

// reader walks the nodes of one file and collects mistakes. It never stops at the first.
type reader struct {
	file     string
	getenv   func(string) (string, bool)
	readFile func(string) ([]byte, error)

	mistakes []Mistake
	// at holds the place of every value that was met, by path; known every key that could have been, with [] for
	// an index.
	at    map[string]place
	known map[string]bool
}

func (r *reader) mistake(p place, path, format string, args ...any) {
	r.mistakes = append(r.mistakes, Mistake{
		File: r.file, Line: p.line, Column: p.column, Path: path, Message: fmt.Sprintf(format, args...),
	})
}

func (r *reader) wrong(n *yaml.Node, path, format string, args ...any) {
	r.mistake(place{n.Line, n.Column}, path, format, args...)
}

// placeOf gives the place of the first path that is in the file: the value itself, else what holds it.
func (r *reader) placeOf(paths ...string) place {
	for _, p := range paths {
		if at, ok := r.at[p]; ok {
			return at
		}
	}
	return place{1, 1}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// mapping reads a mapping with these fields and no others.
func (r *reader) mapping(n *yaml.Node, path string, fields ...field) {
	byKey := make(map[string]read, len(fields))
	for _, f := range fields {
		byKey[f.key] = f.read
		r.known[join(unindexed(path), f.key)] = true
	}
	if !r.isKind(n, path, yaml.MappingNode, "keys with values") {
		return
	}
	seen := make(map[string]int, len(fields))
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		read, ok := byKey[key.Value]
		if key.Kind != yaml.ScalarNode || !ok {
			r.wrong(key, path, "%s", unknownKey(key, byKey))
			continue
		}
		full := join(path, key.Value)
		if line, twice := seen[key.Value]; twice {
			r.wrong(key, full, "stands here a second time (first on line %d): remove one of the two", line)
			continue
		}
		seen[key.Value] = key.Line
		r.at[full] = place{value.Line, value.Column}
		read(value, full)
	}
}

// unindexed turns pods[0].shops[1] into pods[].shops[].
func unindexed(path string) string {
	var b strings.Builder
	inside := false
	for _, c := range path {
		switch {
		case c == '[':
			inside = true
			b.WriteString("[]")
		case c == ']':
			inside = false
		case !inside:
			b.WriteRune(c)
		}
	}
	return b.String()
}

func unknownKey(key *yaml.Node, known map[string]read) string {
	if key.Kind != yaml.ScalarNode {
		return "a key must be a plain word"
	}
	names := slices.Sorted(maps.Keys(known))
	for _, name := range names {
		if distance(key.Value, name) <= 2 {
			return fmt.Sprintf("unknown key %q: did you mean %s?", clip(key.Value), name)
		}
	}
	return fmt.Sprintf("unknown key %q: the keys here are %s", clip(key.Value), strings.Join(names, ", "))
}

// clip keeps a message readable whatever the file holds.
func clip(s string) string {
	if len(s) > 60 {
		return s[:60] + "..."
	}
	return s
}

// distance is the number of single-byte edits between two keys; longer strings than any key count as far.
func distance(a, b string) int {
	if len(a) > 40 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// isKind checks a node's shape. Anchors and aliases are refused: a value that is somewhere else has no place here.
func (r *reader) isKind(n *yaml.Node, path string, kind yaml.Kind, want string) bool {
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		r.wrong(n, path, "anchors and aliases are not used here: write the value out")
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
		r.wrong(n, path, "is empty: write %s, or remove the key", want)
	case n.Kind != kind:
		r.wrong(n, path, "is %s: write %s", shape(n), want)
	default:
		return true
	}
	return false
}

func shape(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Tag == "!!int":
		return "a whole number"
	case n.Tag == "!!float":
		return "a number"
	case n.Tag == "!!bool":
		return "true or false"
	case n.Tag == "!!str":
		return "text"
	default:
		return "of type " + clip(n.Tag)
	}
}

// list reads a list of values of one kind.
func (r *reader) list(each func(i int) read) read {
	return func(n *yaml.Node, path string) {
		if !r.isKind(n, path, yaml.SequenceNode, "a list") {
			return
		}
		for i, item := range n.Content {
			full := fmt.Sprintf("%s[%d]", path, i)
			r.at[full] = place{item.Line, item.Column}
			each(i)(item, full)
		}
	}
}

// section reads a mapping inside another.
func (r *reader) section(fields ...field) read {
	return func(n *yaml.Node, path string) { r.mapping(n, path, fields...) }
}

// scalar gives the text of a scalar with one of the tags, its ${NAME} filled in. A message about it quotes
// n.Value, the text as the file has it: what a variable holds may be secret.
func (r *reader) scalar(n *yaml.Node, path, want string, tags ...string) (string, bool) {
	if !r.isKind(n, path, yaml.ScalarNode, want) {
		return "", false
	}
	if !slices.Contains(tags, n.Tag) {
		r.wrong(n, path, "is %s: write %s", shape(n), want)
		return "", false
	}
	if n.Tag != "!!str" {
		return n.Value, true
	}
	return r.interpolate(n, path)
}

// text reads a string; check may refuse it.
func (r *reader) text(into *string, want string, check func(string) error) read {
	return func(n *yaml.Node, path string) {
		s, ok := r.scalar(n, path, want, "!!str")
		if !ok {
			return
		}
		if err := check(s); err != nil {
			r.wrong(n, path, "%q %v", clip(n.Value), err)
			return
		}
		*into = s
	}
}

// choice reads one of a few words.
func choice[T any](r *reader, into *T, want string, parse func(string) (T, bool)) read {
	return func(n *yaml.Node, path string) {
		s, ok := r.scalar(n, path, want, "!!str")
		if !ok {
			return
		}
		v, ok := parse(s)
		if !ok {
			r.wrong(n, path, "%q is not a choice: write %s", clip(n.Value), want)
			return
		}
		*into = v
	}
}

// duration reads a duration with a unit, between two bounds.
func (r *reader) duration(into *time.Duration, least, most time.Duration) read {
	const want = `a duration with a unit, as in 10m, 200ms or 48h`
	return func(n *yaml.Node, path string) {
		s, ok := r.scalar(n, path, want, "!!str")
		if !ok {
			return
		}
		d, err := time.ParseDuration(s)
		switch {
		case err != nil:
			r.wrong(n, path, "%q is not a duration: write %s", clip(n.Value), want)
		case d < least || d > most:
			r.wrong(n, path, "%s is out of range: use %s to %s", clip(n.Value), show(least), show(most))
		default:
			*into = d
		}
	}
}

// show gives a duration as a person writes it: 10m, not 10m0s.
func show(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// whole reads a whole number between two bounds.
func (r *reader) whole(into *int, least, most int) read {
	return func(n *yaml.Node, path string) {
		s, ok := r.scalar(n, path, "a whole number", "!!int")
		if !ok {
			return
		}
		v, err := strconv.Atoi(s)
		switch {
		case err != nil:
			r.wrong(n, path, "%q is not a decimal whole number: use %s", clip(s), within(least, most))
		case v < least || v > most:
			r.wrong(n, path, "%d is out of range: use %s", v, within(least, most))
		default:
			*into = v
		}
	}
}

// within says which whole numbers are right.
func within(least, most int) string {
	if least == most {
		return strconv.Itoa(least)
	}
	return fmt.Sprintf("%d to %d", least, most)
}

// fraction reads a number from 0 up to, not including, 1.
func (r *reader) fraction(into *float64) read {
	return func(n *yaml.Node, path string) {
		const want = "a number from 0 up to, not including, 1"
		s, ok := r.scalar(n, path, want, "!!float", "!!int")
		if !ok {
			return
		}
		v, err := strconv.ParseFloat(s, 64)
		if err != nil || !(v >= 0 && v < 1) { // the negation also refuses NaN
			r.wrong(n, path, "%s is out of range: use %s", clip(s), want)
			return
		}
		*into = v
	}
}

// number reads a number between two bounds.
func (r *reader) number(into *float64, least, most float64) read {
	return func(n *yaml.Node, path string) {
		s, ok := r.scalar(n, path, "a number", "!!float", "!!int")
		if !ok {
			return
		}
		v, err := strconv.ParseFloat(s, 64)
		if err != nil || !(v >= least && v <= most) { // the negation also refuses NaN
			r.wrong(n, path, "%s is out of range: use %v to %v", clip(s), least, most)
			return
		}
		*into = v
	}
}

// yesNo reads true or false.
func (r *reader) yesNo(into *bool) read {
	return func(n *yaml.Node, path string) {
		s, ok := r.scalar(n, path, "true or false", "!!bool")
		if ok {
			*into = strings.EqualFold(s, "true")
		}
	}
}
