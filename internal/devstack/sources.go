package devstack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// keyring is where Debian's package debian-archive-keyring puts the keys that
// every suite of Debian is signed with.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// source is one archive and suite of the system's own apt configuration.
type source struct {
	uri, suite string
	components []string
}

// debianSources reads the system's apt configuration and keeps Debian's own
// archives of the release with this codename, its updates and security fixes.
func debianSources(root, codename string) ([]source, error) {
	var all []source
	files := []string{filepath.Join(root, "etc/apt/sources.list")}
	for _, pattern := range []string{"*.list", "*.sources"} {
		found, err := filepath.Glob(filepath.Join(root, "etc/apt/sources.list.d", pattern))
		if err != nil {
			return nil, fmt.Errorf("devstack: %w", err)
		}
		files = append(files, found...)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("devstack: %w", err)
		}
		if strings.HasSuffix(name, ".sources") {
			all = append(all, parseDeb822(string(b))...)
		} else {
			all = append(all, parseOneLine(string(b))...)
		}
	}
	suites := []string{codename, codename + "-updates", codename + "-security"}
	all = slices.DeleteFunc(all, func(s source) bool {
		return !slices.Contains(suites, s.suite) || !slices.Contains(s.components, "main")
	})
	if !slices.ContainsFunc(all, func(s source) bool { return s.suite == codename }) {
		return nil, fmt.Errorf("apt's sources name no Debian archive for %q", codename)
	}
	return all, nil
}

// parseOneLine reads "deb [options] uri suite component...".
func parseOneLine(text string) []source {
	var found []source
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[0] != "deb" {
			continue
		}
		fields = fields[1:]
		if strings.HasPrefix(fields[0], "[") {
			end := slices.IndexFunc(fields, func(f string) bool { return strings.HasSuffix(f, "]") })
			fields = fields[end+1:]
		}
		if len(fields) >= 3 {
			found = append(found, source{fields[0], fields[1], fields[2:]})
		}
	}
	return found
}

// parseDeb822 reads stanzas of "Field: values", of which URIs and Suites may
// have several each.
func parseDeb822(text string) []source {
	var found []source
	stanza := map[string]string{}
	end := func() {
		if strings.Contains(stanza["types"], "deb") && stanza["enabled"] != "no" {
			for _, uri := range strings.Fields(stanza["uris"]) {
				for _, suite := range strings.Fields(stanza["suites"]) {
					found = append(found, source{uri, suite, strings.Fields(stanza["components"])})
				}
			}
		}
		clear(stanza)
	}
	last := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		switch name, value, ok := strings.Cut(line, ":"); {
		case strings.TrimSpace(line) == "":
			end()
		case strings.HasPrefix(line, "#"):
		case line[0] == ' ' || line[0] == '\t':
			stanza[last] += " " + strings.TrimSpace(line)
		case ok:
			last = strings.ToLower(name)
			stanza[last] = strings.TrimSpace(value)
		}
	}
	end()
	return found
}

// codename is the release's name in os-release.
func codename(root string) (string, error) {
	b, err := os.ReadFile(filepath.Join(root, "etc/os-release"))
	if err != nil {
		return "", fmt.Errorf("devstack: %w", err)
	}
	id, name := "", ""
	for line := range strings.Lines(string(b)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch value = strings.Trim(value, `"`); key {
		case "ID":
			id = value
		case "VERSION_CODENAME":
			name = value
		}
	}
	if id != "debian" || name == "" {
		return "", fmt.Errorf("this system is %q, not a release of Debian", id)
	}
	return name, nil
}
