package config

import (
	"fmt"
	"slices"
	"strings"
)

// When says when a change of the file takes effect.
type When uint8

// The answers.
const (
	// Now: a reload takes it.
	Now When = iota + 1
	// AfterRestart: the router has to be started again.
	AfterRestart
	// ByFlip: it declares another stage. The fences are what is true; twinhold flip is how a pod gets there.
	ByFlip
)

// String gives the words for a log line.
func (w When) String() string {
	switch w {
	case Now:
		return "now"
	case AfterRestart:
		return "after a restart"
	case ByFlip:
		return "by a flip"
	default:
		return "invalid"
	}
}

// Change is one difference between two configurations.
type Change struct {
	// Path names the key; a pod by its id, as in pods[pod-1].redis.
	Path string
	// Old and New are the values as they may be shown; one is empty where there was, or is, none.
	Old, New string
	Takes    When
	// Note says why it is not taken now, where that is not plain.
	Note string
}

// String gives one line.
func (c Change) String() string {
	s := fmt.Sprintf("%s: %s -> %s (taken %s)", c.Path, orNone(c.Old), orNone(c.New), c.Takes)
	if c.Note != "" {
		s += ": " + c.Note
	}
	return s
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// Diff says what changed from one configuration to the next, in the order of the file's sections, pods last.
func Diff(old, next *Config) []Change {
	_, changes := merge(old, next)
	return changes
}

// Merge is what a router that runs by old can take of next: pods that were not there, and what takes effect at once.
// The rest is as in old. A declared stage is next's: it only says what status compares the fences with.
func Merge(old, next *Config) *Config {
	merged, _ := merge(old, next)
	return merged
}

func merge(old, next *Config) (*Config, []Change) {
	merged := *old
	var changes []Change
	from, into := keys(old), keys(&merged)
	for i, k := range keys(next) {
		if from[i].text() == k.text() {
			continue
		}
		takes := k.takesIn(old, next)
		changes = append(changes, Change{Path: k.path, Old: from[i].text(), New: k.text(), Takes: takes})
		if takes == Now {
			into[i].take(k)
		}
	}
	merged.Pods = nil
	for _, p := range old.Pods {
		kept, of := mergePod(p, next)
		merged.Pods = append(merged.Pods, kept)
		changes = append(changes, of...)
	}
	for _, p := range next.Pods {
		if _, there := old.Pod(p.ID); there {
			continue
		}
		c := Change{Path: podKey(p.ID, ""), New: "shops " + shopsText(p.Shops), Takes: Now}
		if c.Note = clash(merged.Pods, p); c.Note != "" {
			c.Takes = AfterRestart
		} else {
			merged.Pods = append(merged.Pods, p)
		}
		changes = append(changes, c)
	}
	merged.ranges = sortRanges(merged.Pods)
	return &merged, changes
}

func podKey(id, key string) string {
	path := "pods[" + id + "]"
	if key != "" {
		path += "." + key
	}
	return path
}

// mergePod gives a pod as it is served on, and what the next configuration wants otherwise.
func mergePod(p Pod, next *Config) (Pod, []Change) {
	n, there := next.Pod(p.ID)
	if !there {
		return p, []Change{{
			Path: podKey(p.ID, ""), Old: "shops " + shopsText(p.Shops), Takes: AfterRestart, Note: "it is served until then",
		}}
	}
	var changes []Change
	add := func(key, old, now string, takes When) {
		if old != now {
			changes = append(changes, Change{Path: podKey(p.ID, key), Old: old, New: now, Takes: takes})
		}
	}
	add("shops", shopsText(p.Shops), shopsText(n.Shops), AfterRestart)
	for _, s := range []struct {
		key      string
		old, now Secret
	}{{"redis", p.Redis, n.Redis}, {"mysql", p.MySQL, n.MySQL}, {"mysql_replica", p.MySQLReplica, n.MySQLReplica}} {
		switch {
		case s.old.value == s.now.value:
		case s.old.shown == s.now.shown:
			changes = append(changes, Change{
				Path: podKey(p.ID, s.key), Old: s.old.shown, New: s.now.shown, Takes: AfterRestart, Note: "only what is not shown differs",
			})
		default:
			add(s.key, s.old.shown, s.now.shown, AfterRestart)
		}
	}
	add("source_of_truth and mirror", p.DeclaredStage().String(), n.DeclaredStage().String(), ByFlip)
	add("max_stage", p.MaxStage.String(), n.MaxStage.String(), Now)
	p.SourceOfTruth, p.Mirror, p.MaxStage = n.SourceOfTruth, n.Mirror, n.MaxStage
	return p, changes
}

// clash says why a new pod cannot be served beside those that are: what it takes over is theirs until a restart.
func clash(pods []Pod, n Pod) string {
	for _, p := range pods {
		if schema := schemaOf(n.MySQL); schema != "" && schema == schemaOf(p.MySQL) {
			return "its schema is that of pod " + p.ID + " until then"
		}
		for _, a := range p.Shops {
			if slices.ContainsFunc(n.Shops, func(b ShopRange) bool { return a.First <= b.Last && b.First <= a.Last }) {
				return "shops of it are those of pod " + p.ID + " until then"
			}
		}
	}
	return ""
}

func shopsText(shops []ShopRange) string {
	text := make([]string, len(shops))
	for i, s := range shops {
		text[i] = s.String()
	}
	return strings.Join(text, ",")
}
