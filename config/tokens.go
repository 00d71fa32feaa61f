package config

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// minToken is the shortest token: shorter ones can be guessed.
const minToken = 16

// Token is one of a tokens file. The secret itself is not kept.
type Token struct {
	Name string
	Role string
	Sum  [sha256.Size]byte
}

// LoadTokens reads a tokens file. Its errors never quote a token.
func LoadTokens(path string) ([]Token, error) {
	data, err := readRegular(path, maxSecret)
	if err != nil {
		return nil, fmt.Errorf("the tokens file %s %w", path, err)
	}
	t, err := ParseTokens(data)
	if err != nil {
		return nil, fmt.Errorf("the tokens file %s %w", path, err)
	}
	return t, nil
}

// ParseTokens reads the text of a tokens file. Its errors never quote a token.
func ParseTokens(data []byte) ([]Token, error) {
	var file struct {
		Tokens []struct {
			Name  string `yaml:"name"`
			Role  string `yaml:"role"`
			Token string `yaml:"token"`
		} `yaml:"tokens"`
	}
	if err := yaml.Load(data, &file, yaml.WithKnownFields(), yaml.WithUniqueKeys()); err != nil {
		return nil, errors.New("is not usable (not shown: it holds tokens): write tokens: [{name: NAME, role: viewer, token: SECRET}] and nothing else")
	}
	if len(file.Tokens) == 0 {
		return nil, errors.New("holds no token: write tokens: [{name: NAME, role: viewer, token: SECRET}]")
	}
	var out []Token
	for i, t := range file.Tokens {
		n := Token{Name: t.Name, Role: t.Role, Sum: sha256.Sum256([]byte(t.Token))}
		at := fmt.Sprintf("is not usable: tokens[%d]", i)
		switch {
		case t.Name == "":
			return nil, fmt.Errorf("%s has no name", at)
		case t.Role == "":
			return nil, fmt.Errorf("%s (%s) has no role: use viewer, operator or oncall", at, clip(t.Name))
		case !slices.Contains([]string{"viewer", "operator", "oncall"}, t.Role):
			return nil, fmt.Errorf("%s (%s): the role %q is none: use viewer, operator or oncall", at, clip(t.Name), clip(t.Role))
		case len(t.Token) < minToken || strings.ContainsAny(t.Token, " \t\r\n"):
			return nil, fmt.Errorf("%s (%s): the token is too short or has blanks: use %d characters or more", at, clip(t.Name), minToken)
		case slices.ContainsFunc(out, func(o Token) bool { return o.Name == n.Name || o.Sum == n.Sum }):
			return nil, fmt.Errorf("%s (%s): the name or the token stands there twice", at, clip(t.Name))
		}
		out = append(out, n)
	}
	return out, nil
}

// checkTokens wants a tokens file that is usable, and one at all where other machines reach the admin listener.
func (r *reader) checkTokens(a Admin) {
	const listen, file = "admin.listen", "admin.tokens_file"
	if r.has("admin", listen, file) {
		return
	}
	if a.TokensFile == "" {
		if !IsLoopback(a.Listen) {
			r.mistake(r.placeOf(listen, "admin"), listen, "%s is not on loopback, and there are no tokens: listen on 127.0.0.1, or name an admin.tokens_file", a.Listen)
		}
		return
	}
	data, err := r.readFile(a.TokensFile)
	if err == nil {
		_, err = ParseTokens(data)
	}
	if err != nil {
		r.mistake(r.placeOf(file), file, "the file %v", err)
	}
}

// IsLoopback tells whether only this machine reaches an address. A name other than localhost is not trusted.
func IsLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
