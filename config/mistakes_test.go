package config

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the expected messages anew")

// testdata/mistakes holds one file per mistake, and beside it the message that it must give. A file may hold
// several mistakes; all of them are given at once.
func TestMistakes(t *testing.T) {
	files, err := filepath.Glob("testdata/mistakes/*.yaml")
	if err != nil || len(files) < 40 {
		t.Fatalf("%d files of mistakes, %v: want 40 at least", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			c, err := LoadEnv(file, env)
			var e *Error
			if !errors.As(err, &e) || c != nil {
				t.Fatalf("LoadEnv gave %v and the error %v: want no configuration and an *Error", c, err)
			}
			got := err.Error() + "\n"
			golden := strings.TrimSuffix(file, ".yaml") + ".txt"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatalf("no expected message: %v (write it with -update, then read it)", err)
			}
			if got != string(want) {
				t.Errorf("got:\n%swant:\n%s", got, want)
			}
		})
	}
	texts, err := filepath.Glob("testdata/mistakes/*.txt")
	if err != nil || len(texts) != len(files) {
		t.Errorf("%d messages for %d files, %v: one of them is left over", len(texts), len(files), err)
	}
}
