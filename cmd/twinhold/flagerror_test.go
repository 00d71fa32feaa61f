package main

import (
	"context"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func TestBadFlagValues(t *testing.T) {
	for args, want := range map[string]string{
		"bench pool --callers x":                      `invalid value "x" for "--callers": whole numbers by comma are wanted, as in --callers 8,64`,
		"bench pool --callers 8,99999999999999999999": `invalid value "99999999999999999999" in "8,99999999999999999999" for "--callers": out of range, whole numbers by comma are wanted`,
		"bench pool --rtt 5":                          `invalid value "5" for "--rtt": a time with its unit is wanted, as in --rtt 500us`,
		"bench pool --devstack=maybe":                 `invalid value "maybe" for "--devstack": true or false is wanted, as in --devstack=true`,
		"bench claim --seconds soon":                  `invalid value "soon" for "--seconds": a number is wanted, as in --seconds 5`,
		"reconcile pod-1 --pause 5":                   `invalid value "5" for "--pause": a time with its unit is wanted, as in --pause 5s`,
		"reconcile pod-1 --rounds 1.5":                `invalid value "1.5" for "--rounds": a whole number is wanted, as in --rounds 3`,
		"reserve --ttl 5":                             `invalid value "5" for "--ttl": a time with its unit is wanted, as in --ttl 10m`,
		"doctor --format xml":                         `invalid value "xml" for "--format": use text or json`,
	} {
		res := runCLI(t, strings.Fields(args)...)
		if res.code != exitFailed || !strings.Contains(res.err, want) || !strings.Contains(res.err, "\nhint: see twinhold ") {
			t.Errorf("%s: exit %d, %s, want %s", args, res.code, res.err, want)
		}
	}
}

// No flag answers in the words of what parses it, also one that is new.
func TestEveryFlagSaysWhatItWants(t *testing.T) {
	leaks := regexp.MustCompile(`strconv|parsing|invalid syntax|time: |missing unit|invalid duration|bare "`)
	a := &app{streams: streams{out: io.Discard, err: io.Discard}, getenv: func(string) (string, bool) { return "", false }, format: formatText}
	tried := 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, c := range cmd.Commands() {
			walk(c)
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			err := cmd.ParseFlags([]string{"--" + f.Name + `=?"`})
			if err == nil { // a text
				return
			}
			tried++
			text := plainFlagError(err).Error()
			if leaks.MatchString(text) || !strings.Contains(text, "--"+f.Name) || !strings.Contains(text, ", as in --"+f.Name) && !strings.Contains(text, ": use ") {
				t.Errorf("%s: %s", cmd.CommandPath(), text)
			}
		})
	}
	root := newRootCmd(a)
	root.SetContext(context.Background())
	walk(root)
	if tried < 30 {
		t.Errorf("only %d flags were tried", tried)
	}
}
