package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Role says what the bearer of a token may do.
type Role string

// The roles. A viewer looks, oncall may kill and freeze too, an operator may do all.
const (
	Viewer   Role = "viewer"
	Operator Role = "operator"
	Oncall   Role = "oncall"
)

// minToken is the shortest token: shorter ones can be guessed.
const minToken = 16

// Token is one person's or one program's. The secret itself is not kept.
type Token struct {
	Name string
	Role Role
	sum  [sha256.Size]byte
}

// Tokens are those that the admin listener knows.
type Tokens []Token

// LoadTokens reads a tokens file. Its errors never quote a token.
func LoadTokens(path string) (Tokens, error) {
	data, err := os.ReadFile(path) //nolint:gosec // the file that the configuration names
	if err != nil {
		return nil, fmt.Errorf("read the tokens: %w", err)
	}
	t, err := ParseTokens(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// ParseTokens reads the text of a tokens file.
func ParseTokens(data []byte) (Tokens, error) {
	var file struct {
		Tokens []struct {
			Name  string `yaml:"name"`
			Role  Role   `yaml:"role"`
			Token string `yaml:"token"`
		} `yaml:"tokens"`
	}
	if err := yaml.Load(data, &file, yaml.WithKnownFields(), yaml.WithUniqueKeys()); err != nil {
		return nil, errors.New("is not usable (not shown: it holds tokens): write tokens: [{name: NAME, role: viewer, token: SECRET}] and nothing else")
	}
	if len(file.Tokens) == 0 {
		return nil, errors.New("holds no token: write tokens: [{name: NAME, role: viewer, token: SECRET}]")
	}
	var out Tokens
	for i, t := range file.Tokens {
		n := Token{Name: t.Name, Role: t.Role, sum: sha256.Sum256([]byte(t.Token))}
		switch {
		case t.Name == "":
			return nil, fmt.Errorf("tokens[%d] has no name", i)
		case !slices.Contains([]Role{Viewer, Operator, Oncall}, t.Role):
			return nil, fmt.Errorf("tokens[%d] (%s): the role is none: use viewer, operator or oncall", i, t.Name)
		case len(t.Token) < minToken || strings.ContainsAny(t.Token, " \t\r\n"):
			return nil, fmt.Errorf("tokens[%d] (%s): the token is too short or has blanks: use %d characters or more", i, t.Name, minToken)
		case slices.ContainsFunc(out, func(o Token) bool { return o.Name == n.Name || o.sum == n.sum }):
			return nil, fmt.Errorf("tokens[%d] (%s): the name or the token stands there twice", i, t.Name)
		}
		out = append(out, n)
	}
	return out, nil
}

// find gives the token of a request. Every known one is compared, in the same time.
func (t Tokens) find(r *http.Request) (Token, bool) {
	scheme, secret, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return Token{}, false
	}
	sum := sha256.Sum256([]byte(secret))
	hit := -1
	for i := range t {
		hit = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(sum[:], t[i].sum[:]), i, hit)
	}
	if hit < 0 {
		return Token{}, false
	}
	return t[hit], true
}

// guarded lets only bearers of a token through, where there are tokens.
func (s *Server) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tokens := s.tokensNow()
		if _, ok := tokens.find(r); !ok && len(tokens) > 0 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			s.writeJSON(w, http.StatusUnauthorized, problem{"unauthenticated", "send a token of the tokens file: Authorization: Bearer TOKEN"})
			return
		}
		next.ServeHTTP(w, r)
	})
}
