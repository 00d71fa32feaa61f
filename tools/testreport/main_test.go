package main

import (
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	const pass = `{"Action":"output","Package":"p","Test":"TestA","Output":"noise\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Elapsed":1.5}
`
	for name, c := range map[string]struct {
		in   string
		code int
		want []string
		not  string
	}{
		"pass": {pass, 0, []string{"ok  \tp\t1.500s\n", "1 passed, 0 failed, 0 skipped\n"}, "noise"},
		"skip": {
			pass + `{"Action":"output","Package":"p","Test":"TestS","Output":"=== RUN   TestS\n"}
{"Action":"output","Package":"p","Test":"TestS","Output":"    a_test.go:1: no server\n"}
{"Action":"skip","Package":"p","Test":"TestS"}
`, 0,
			[]string{"SKIP p TestS: a_test.go:1: no server\n", "1 passed, 0 failed, 1 skipped\n"},
			"=== RUN",
		},
		"fail": {
			pass + `{"Action":"output","Package":"q","Test":"TestB","Output":"what went wrong\n"}
{"Action":"fail","Package":"q","Test":"TestB"}
{"Action":"output","Package":"q","Output":"panic: at the end\n"}
{"Action":"fail","Package":"q","Elapsed":2}
`, 1,
			[]string{"what went wrong\n", "panic: at the end\n", "FAIL\tq\t2.000s\n", "1 passed, 1 failed, 0 skipped\n"},
			"noise",
		},
		"build": {
			pass + `{"Action":"build-output","ImportPath":"q","Output":"q.go:1: undefined: x\n"}
{"Action":"build-fail","ImportPath":"q"}
`, 1,
			[]string{"undefined: x\n"},
			"noise",
		},
		"table": {
			`{"Action":"output","Package":"p","Test":"TestT","Output":"    a_test.go:1: \\n        | fault | calls |\n"}
{"Action":"output","Package":"p","Test":"TestT","Output":"        | none | 7 |\n"}
` + strings.ReplaceAll(pass, "TestA", "TestT"), 0,
			[]string{"| none | 7 |\n", "1 passed, 0 failed, 0 skipped\n"},
			"noise",
		},
		"nothing": {"", 1, []string{"0 passed"}, "noise"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			if code := run(strings.NewReader(c.in), &out); code != c.code {
				t.Errorf("exit %d, want %d", code, c.code)
			}
			for _, want := range c.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q in\n%s", want, out.String())
				}
			}
			if strings.Contains(out.String(), c.not) {
				t.Errorf("%q in\n%s", c.not, out.String())
			}
		})
	}
}
