package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"connectrpc.com/connect"

	"github.com/twinhold/twinhold/config"
)

// anybody is who acts where there are no tokens: the listener is on loopback, and whoever is there may do all.
func anybody() Token { return Token{Name: "loopback", Role: Operator} }

type tokenKey struct{}

// bearer gives the token of a call of the admin API.
func bearer(ctx context.Context) (Token, error) {
	t, ok := ctx.Value(tokenKey{}).(Token)
	if !ok {
		return Token{}, connect.NewError(connect.CodeUnauthenticated, errNoToken)
	}
	return t, nil
}

// allowed gives the token of a call if its role is one of these.
func allowed(ctx context.Context, what string, roles ...Role) (Token, error) {
	t, err := bearer(ctx)
	if err != nil {
		return t, err
	}
	if !slices.Contains(roles, t.Role) {
		return t, connect.NewError(connect.CodePermissionDenied, fmt.Errorf("%s is %s, and may not %s: nothing was done", t.Name, t.Role, what))
	}
	return t, nil
}

var (
	errNoToken = errors.New("send a token of the tokens file: Authorization: Bearer TOKEN")
	errForeign = errors.New("without tokens the admin API answers to this machine's own names only: use 127.0.0.1 or localhost, or configure admin.tokens_file")
)

// authenticated lets a request of the admin API through with its token. It comes before anything of it is read.
func (s *Server) authenticated(next http.Handler) http.Handler {
	refuse := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t, err := s.admit(r)
		if err != nil {
			if refuse.IsSupported(r) {
				_ = refuse.Write(w, r, err) // a caller that does not take it is gone
				return
			}
			code := http.StatusUnauthorized
			if connect.CodeOf(err) == connect.CodePermissionDenied {
				code = http.StatusForbidden
			}
			s.writeJSON(w, code, problem{connect.CodeOf(err).String(), errors.Unwrap(err).Error()})
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tokenKey{}, t)))
	})
}

// SetTokens replaces the tokens, as after a reload. An admin listener that others reach keeps at least one.
func (s *Server) SetTokens(tokens Tokens) error {
	if len(tokens) == 0 && !config.IsLoopback(s.opt.AdminListen) {
		return fmt.Errorf("admin.listen %s: %w", s.opt.AdminListen, ErrOpenAdmin)
	}
	s.tokens.Store(&tokens)
	return nil
}

func (s *Server) tokensNow() Tokens { return *s.tokens.Load() }

// admit finds out who asks. Where there are no tokens, a page in somebody's browser must not pass for this machine:
// one that has its own name resolve to loopback is known by that name.
func (s *Server) admit(r *http.Request) (Token, error) {
	tokens := s.tokensNow()
	if len(tokens) == 0 {
		if !isLoopbackHost(r.Host) {
			return Token{}, connect.NewError(connect.CodePermissionDenied, errForeign)
		}
		return anybody(), nil
	}
	t, ok := tokens.find(r)
	if !ok {
		return Token{}, connect.NewError(connect.CodeUnauthenticated, errNoToken)
	}
	return t, nil
}
