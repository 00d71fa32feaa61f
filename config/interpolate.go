package config

import (
	"strings"

	"go.yaml.in/yaml/v4"
)

// interpolate fills in ${NAME} from the environment; $${ stands for a plain ${. A variable that is not set is a
// mistake, since an empty password in its place would only be found out much later. What a variable holds is
// taken as it is: it is never searched for further variables, and never shown.
func (r *reader) interpolate(n *yaml.Node, path string) (string, bool) {
	s, ok := n.Value, true
	if !strings.Contains(s, "${") {
		return s, true
	}
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(s, "${")
		if !found {
			b.WriteString(s)
			return b.String(), ok
		}
		if strings.HasSuffix(before, "$") {
			b.WriteString(before + "{")
			s = rest
			continue
		}
		b.WriteString(before)
		name, after, closed := strings.Cut(rest, "}")
		if !closed {
			r.wrong(n, path, "has a ${ without its }: close it, or write $${ for a plain ${")
			return "", false
		}
		s = after
		if !isEnvName(name) {
			r.wrong(n, path, "${...} holds no variable name: use letters, digits and _, not starting with a digit")
			ok = false
			continue
		}
		value, set := r.getenv(name)
		if !set {
			r.wrong(n, path, "the environment variable %s is not set: set it, or write $${ for a plain ${", clip(name))
			ok = false
			continue
		}
		b.WriteString(value)
	}
}

func isEnvName(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}
