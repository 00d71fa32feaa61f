package conntag

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestTags(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{
		"/* conn_tag:fence */ SELECT 1":          "fence",
		"/* conn_tag:diff.flush */INSERT":        "diff.flush",
		"/* conn_tag:a-B_9.c*/ DO 1":             "a-B_9.c",
		"INSERT /* conn_tag:lab.setup */ INTO t": "lab.setup",
		"(SELECT /* conn_tag:lab.union */ 1)":    "lab.union",
		"":                                       "",
		"SELECT 1":                               "",
		"/* conn_tag: */ SELECT 1":               "",
		"/* conn_tag:":                           "",
		"/* conn_tag:cut":                        "",
		"/* conn_tag:with'quote */ SELECT 1":     "",
		"/* conn_tag:" + strings.Repeat("x", maxName) + " */ DO 1":  strings.Repeat("x", maxName),
		"/* conn_tag:" + strings.Repeat("x", maxName+1) + " */ DO":  "",
		strings.Repeat(" ", lookAhead) + "/* conn_tag:far */ DO 1":  "far",
		strings.Repeat(" ", lookAhead+1) + "/* conn_tag:f */ DO 1 ": "",
	} {
		if got, ok := tagOf(query); got != want || ok != (want != "") {
			t.Errorf("%q: %q, %t; want %q", query, got, ok, want)
		}
	}
}

func FuzzTagOf(f *testing.F) {
	f.Add("/* conn_tag:fence */ SELECT 1")
	f.Add("INSERT /* conn_tag:x*/")
	f.Fuzz(func(t *testing.T, query string) {
		name, ok := tagOf(query)
		if ok != (name != "") || len(name) > maxName || ok && !strings.Contains(query, opening+name) {
			t.Errorf("%q: %q, %t", query, name, ok)
		}
	})
}

// What is counted of a statement whose tag is known costs no memory.
func TestAKnownTagAllocatesNothing(t *testing.T) {
	m, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := &conn{meter: m}
	const query = "/* conn_tag:fence */ SELECT 1"
	c.end(c.start(query), nil)
	if n := testing.AllocsPerRun(1000, func() { c.end(c.start(query), nil); c.checkIn() }); n != 0 {
		t.Errorf("%v allocations a statement", n)
	}
}

// Tags that are made up at run time end in one.
func TestTagsAreBounded(t *testing.T) {
	t.Parallel()
	m, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := &conn{meter: m}
	const sent = 2 * maxTags
	for n := range sent {
		c.end(c.start(fmt.Sprintf("/* conn_tag:made.up.%d */ DO 1", n)), nil)
	}
	var statements, other int64
	m.tags.each(func(one *tally) {
		statements += one.statements.Load()
		if one.name == Other {
			other = one.statements.Load()
		}
	})
	if len(*m.tags.all.Load()) != maxTags || statements != sent || other <= sent-maxTags {
		t.Errorf("%d tags, %d statements, %d of them under %s", len(*m.tags.all.Load()), statements, other, Other)
	}
}

func BenchmarkStatement(b *testing.B) {
	m, err := New(Options{Now: time.Now})
	if err != nil {
		b.Fatal(err)
	}
	c := &conn{meter: m}
	b.ReportAllocs()
	for b.Loop() {
		c.end(c.start("/* conn_tag:fence */ SELECT epoch FROM pod_fence WHERE pod = ? FOR SHARE"), nil)
	}
}
