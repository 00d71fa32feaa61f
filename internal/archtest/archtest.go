// Package archtest holds the import direction of the project:
//
//	cmd -> internal -> router, rollout -> killswitch, shadow, diff -> legacyredis, mysqlstore -> reservation
//
// The two stores never import each other (a test in a package of its own may set
// one against the other: Redis's claims need MySQL's ledger), the leaf imports no
// sibling, and the test servers are out of reach of whatever runs in production
// but the binary.
// It reads source files only, and knows nothing of what they do.
package archtest

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Violation is one import, or one call, that the rules forbid.
type Violation struct {
	File   string // below the module's root
	Line   int
	Import string // or what is called
	Rule   string
}

func (v Violation) String() string {
	return fmt.Sprintf("%s:%d: %s: %s", v.File, v.Line, v.Import, v.Rule)
}

// file is what the rules look at: one source file's place and kind.
type file struct {
	dir  string // of the package, below the module's root
	test bool   // a test file, or the contract suite that tests call
	// apart is a test file in a package of its own, foo_test.
	apart bool
}

// layers are the public packages from the bottom up. A package may import what
// lies in a lower layer, and its own subpackages. Packages of one layer may use
// each other, but for the two stores (the compiler forbids circles).
func layers() [][]string {
	return [][]string{
		{"reservation"},
		{"legacyredis", "mysqlstore"},
		{"killswitch", "shadow", "diff"},
		{"router", "rollout"},
	}
}

// Check parses all Go files below a module's root and returns what breaks the
// rules, in the order of files and lines. It skips testdata and hidden folders.
func Check(root fs.FS, module string) ([]Violation, error) {
	var found []Violation
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if base := d.Name(); name != "." && (base == "testdata" || base == "node_modules" || base[0] == '.' || base[0] == '_') {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		violations, err := checkFile(root, name, module)
		found = append(found, violations...)
		return err
	})
	slices.SortStableFunc(found, func(a, b Violation) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	return found, err
}

func checkFile(root fs.FS, name, module string) ([]Violation, error) {
	src, err := fs.ReadFile(root, name)
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	tree, err := parser.ParseFile(fset, name, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	f := file{dir: path.Dir(name)}
	f.apart = strings.HasSuffix(tree.Name.Name, "_test")
	f.test = strings.HasSuffix(name, "_test.go") || f.dir == "reservation/storetest"
	var found []Violation
	for _, spec := range tree.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		if rule := f.forbids(imported, module); rule != "" {
			found = append(found, Violation{name, fset.Position(spec.Pos()).Line, imported, rule})
		}
	}
	if f.test {
		for _, pos := range sleeps(tree) {
			found = append(found, Violation{name, fset.Position(pos).Line, "time.Sleep", "a test waits for a signal or a condition, never for time to pass"})
		}
	}
	return found, nil
}

// forbids says which rule an import breaks, or nothing.
func (f file) forbids(imported, module string) string {
	rel, sibling := strings.CutPrefix(imported, module+"/")
	if !sibling {
		return f.forbidsForeign(imported)
	}
	from, to := top(f.dir), top(rel)
	switch {
	case from == to && from != "internal":
		return ""
	case from == "cmd":
		return ""
	case to == "cmd":
		return "nothing imports a command"
	case from == "internal":
		return f.forbidsInternal(rel)
	case to == "internal":
		return f.forbidsFromInternal(rel)
	}
	return f.forbidsLayer(from, to)
}

// forbidsForeign: the leaf is all but free of dependencies. Its tests and its
// test suites may use what tests use.
func (f file) forbidsForeign(imported string) string {
	if f.dir != "reservation" || f.test {
		return ""
	}
	first, _, _ := strings.Cut(imported, "/")
	if !strings.Contains(first, ".") || imported == "github.com/google/uuid" {
		return ""
	}
	return "reservation imports only the standard library and uuid"
}

// forbidsInternal: what starts and breaks servers knows no product.
func (f file) forbidsInternal(rel string) string {
	for _, tool := range []string{"internal/devstack", "internal/faultproxy", "internal/archtest"} {
		if !within(f.dir, tool) || within(rel, tool) {
			continue
		}
		if f.test && within(rel, "internal/devstack") {
			return ""
		}
		return tool + " imports no other package of the project"
	}
	if !f.test && within(rel, "internal/devstack/devtest") && !strings.HasSuffix(f.dir, "test") {
		return "devtest is for tests, and for packages named ...test that help them"
	}
	return ""
}

// forbidsFromInternal: public packages lie below internal, but their tests use
// the test servers.
func (f file) forbidsFromInternal(rel string) string {
	if f.test {
		return ""
	}
	return "what is public does not import " + rel + ": internal is above it"
}

func (f file) forbidsLayer(from, to string) string {
	lower, upper := layerOf(to), layerOf(from)
	switch {
	case (from == "legacyredis" && to == "mysqlstore") || (from == "mysqlstore" && to == "legacyredis"):
		if f.apart {
			return ""
		}
		return "the two stores never import each other"
	case to == "config" || to == "api":
		return to + " is for cmd and internal"
	case from == "config" && to != "reservation":
		return "config imports nothing of the project but reservation"
	case from == "api":
		return "api imports nothing of the project"
	case upper == 0 || lower == 0: // a folder that has no layer yet
		return ""
	case lower > upper:
		return to + " is above " + from
	}
	return ""
}

// layerOf counts from 1; 0 is for what has no layer.
func layerOf(name string) int {
	for i, layer := range layers() {
		if slices.Contains(layer, name) {
			return i + 1
		}
	}
	return 0
}

// top is the first element of a path, "" for the module's root.
func top(dir string) string {
	first, _, _ := strings.Cut(dir, "/")
	if first == "." {
		return ""
	}
	return first
}

func within(dir, parent string) bool { return dir == parent || strings.HasPrefix(dir, parent+"/") }

// sleeps are the calls of time.Sleep in a file.
func sleeps(tree *ast.File) []token.Pos {
	name := ""
	for _, spec := range tree.Imports {
		if spec.Path.Value != `"time"` {
			continue
		}
		name = "time"
		if spec.Name != nil {
			name = spec.Name.Name
		}
	}
	var found []token.Pos
	ast.Inspect(tree, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok || sel.Sel.Name != "Sleep" {
			return true
		}
		if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == name {
			found = append(found, sel.Pos())
		}
		return true
	})
	return found
}
