package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"

	"github.com/twinhold/twinhold/config"
)

// Role says what the bearer of a token may do.
type Role string

// The roles. A viewer looks, oncall may kill and freeze too, an operator may do all. config.ParseTokens knows them by name.
const (
	Viewer   Role = "viewer"
	Operator Role = "operator"
	Oncall   Role = "oncall"
)

// Token is one person's or one program's. The secret itself is not kept.
type Token struct {
	Name string
	Role Role
	sum  [sha256.Size]byte
}

// Tokens are those that the admin listener knows.
type Tokens []Token

// LoadTokens reads a tokens file. Its errors never quote a token.
func LoadTokens(path string) (Tokens, error) { return tokensOf(config.LoadTokens(path)) }

// ParseTokens reads the text of a tokens file.
func ParseTokens(data []byte) (Tokens, error) { return tokensOf(config.ParseTokens(data)) }

func tokensOf(list []config.Token, err error) (Tokens, error) {
	var out Tokens
	for _, t := range list {
		out = append(out, Token{Name: t.Name, Role: Role(t.Role), sum: t.Sum})
	}
	return out, err
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
