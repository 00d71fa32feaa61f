package config

import (
	"log/slog"
	"net/url"
	"slices"
	"strings"
)

// hidden stands where a password was.
const hidden = "xxxxx"

// Secret is an address with credentials. However it is printed, logged or encoded, its passwords are hidden; only
// Reveal gives them.
type Secret struct {
	value, shown string
}

// RedisSecret wraps a Redis URL.
func RedisSecret(u string) Secret { return Secret{value: u, shown: hideURL(u)} }

// MySQLSecret wraps a MySQL DSN.
func MySQLSecret(dsn string) Secret { return Secret{value: dsn, shown: hideDSN(dsn)} }

// Reveal gives the address as it is, passwords and all. It is for connecting, never for showing.
func (s Secret) Reveal() string { return s.value }

// IsZero tells whether nothing was configured.
func (s Secret) IsZero() bool { return s.value == "" }

// String gives the address with its passwords hidden.
func (s Secret) String() string { return s.shown }

// GoString hides what %#v would show.
func (s Secret) GoString() string { return "config.Secret(" + s.shown + ")" }

// MarshalText hides what JSON and the like would show.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.shown), nil }

// LogValue hides what slog would show.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.shown) }

// hideURL rebuilds a URL from what may be shown. A string that is no URL is hidden whole, since nobody can tell
// which part of it is the password.
func hideURL(raw string) string {
	if raw == "" {
		return ""
	}
	u, err := url.Parse(raw)
	if err != nil || u.Opaque != "" || u.Scheme == "" {
		return hidden
	}
	if _, set := u.User.Password(); set {
		u.User = url.UserPassword(u.User.Username(), hidden)
	}
	q := u.Query()
	for k := range q {
		if strings.Contains(strings.ToLower(k), "password") {
			q[k] = []string{hidden}
		}
	}
	if len(q) > 0 || u.RawQuery != "" {
		u.RawQuery = q.Encode()
	}
	return u.String()
}

// shownParams are the DSN parameters that are no secret and worth seeing. All others keep their name only.
func shownParams() []string {
	return []string{"tls", "timeout", "readTimeout", "writeTimeout", "collation", "charset", "loc", "parseTime"}
}

// hideDSN cuts a DSN as the driver does: the last slash ends the address, the last @ before it the credentials,
// the first colon in those the user.
func hideDSN(dsn string) string {
	if dsn == "" {
		return ""
	}
	slash := strings.LastIndexByte(dsn, '/')
	if slash < 0 {
		return hidden
	}
	head, tail := dsn[:slash], dsn[slash+1:]
	var b strings.Builder
	if at := strings.LastIndexByte(head, '@'); at >= 0 {
		user, _, withPassword := strings.Cut(head[:at], ":")
		b.WriteString(user)
		if withPassword {
			b.WriteString(":" + hidden)
		}
		b.WriteByte('@')
		head = head[at+1:]
	}
	b.WriteString(head + "/")
	db, params, withParams := strings.Cut(tail, "?")
	b.WriteString(db)
	if withParams {
		b.WriteString("?" + hideParams(params))
	}
	return b.String()
}

func hideParams(params string) string {
	parts := strings.Split(params, "&")
	for i, p := range parts {
		name, _, set := strings.Cut(p, "=")
		if set && !slices.Contains(shownParams(), name) {
			parts[i] = name + "=" + hidden
		}
	}
	return strings.Join(parts, "&")
}
