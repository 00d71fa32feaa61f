package devstack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

var compilerPackages = packages{ //nolint:gochecknoglobals // a constant list
	name: "cc", title: "a C compiler",
	names: []string{"gcc", "libc6-dev"},
	hint:  "install gcc and libc6-dev: Go's race detector is linked with them",
}

// Compiler is a C compiler for go test -race: empty if PATH has one, else the
// path of one that is fetched into the dev folder.
func Compiler(ctx context.Context, o Options) (string, error) {
	for _, name := range []string{os.Getenv("CC"), "gcc", "clang"} {
		if lookPath(name) != "" {
			return "", nil
		}
	}
	dev, err := devDir(o.Dir)
	if err != nil {
		return "", err
	}
	prefix, err := fetch(ctx, dev, compilerPackages, "no C compiler on PATH", progressOf(o.Progress))
	if err != nil {
		return "", err
	}
	libs, err := filepath.Glob(filepath.Join(prefix, "usr/lib/*-linux-gnu"))
	if err != nil || len(libs) == 0 {
		return "", fmt.Errorf("devstack: the unpacked packages lack libraries: %w", err)
	}
	// The compiler finds its parts beside itself; its libraries, its assembler
	// and the C library's headers have to be shown to it.
	script := fmt.Sprintf("#!/bin/sh\np='%s'\nexport LD_LIBRARY_PATH='%s' PATH=\"$p/usr/bin:$PATH\"\nexec \"$p/usr/bin/gcc\" --sysroot=\"$p\" \"$@\"\n", prefix, libs[0])
	wrapper := filepath.Join(dev, "cc-wrapper")
	if err := os.WriteFile(wrapper, []byte(script), 0o755); err != nil { //nolint:gosec // it is a program
		return "", fmt.Errorf("devstack: %w", err)
	}
	return wrapper, nil
}
