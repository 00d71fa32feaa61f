package main

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// plainFlagError says of a flag's bad value what is wanted, with an example: the words of the functions that parse it are
// for who wrote them.
func plainFlagError(err error) error {
	bad, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	flag, value := bad.GetFlag(), strconv.Quote(bad.GetValue())
	if one, ok := errors.AsType[*strconv.NumError](bad); ok && one.Num != bad.GetValue() {
		value = strconv.Quote(one.Num) + " in " + value
	}
	return fmt.Errorf("invalid value %s for %q: %s", value, "--"+flag.Name, wanted(flag, errors.Unwrap(bad)))
}

// wanted is what a flag takes. What our own kinds of value say of themselves is good enough.
func wanted(flag *pflag.Flag, cause error) string {
	var kind, example string
	switch flag.Value.Type() {
	case "int", "int64":
		kind, example = "a whole number is wanted", "8"
	case "intSlice":
		kind, example = "whole numbers by comma are wanted", "8,64"
	case "float64":
		kind, example = "a number is wanted", "0.5"
	case "duration":
		kind, example = "a time with its unit is wanted", "10m"
	case "bool":
		kind, example = "true or false is wanted", "true"
	case "stringSlice":
		kind, example = "names by comma are wanted", "a,b"
	default:
		return cause.Error()
	}
	if errors.Is(cause, strconv.ErrRange) {
		kind = "out of range, " + kind
	}
	between := " "
	if flag.NoOptDefVal != "" { // it stands alone, or has its value after =
		between = "="
	}
	return fmt.Sprintf("%s, as in --%s%s%s", kind, flag.Name, between, exampleOf(flag, example))
}

var asIn = regexp.MustCompile(`as in (\w[\w.,]*\w)`)

// exampleOf is what the flag's help shows, or its default where that is no list, or one of its kind.
func exampleOf(flag *pflag.Flag, ofKind string) string {
	if m := asIn.FindStringSubmatch(flag.Usage); m != nil {
		return m[1]
	}
	if def := flag.DefValue; def != "" && def != "0" && def != "0s" && def != "false" && !strings.HasPrefix(def, "[") {
		return def
	}
	return ofKind
}
