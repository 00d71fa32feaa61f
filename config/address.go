package config

import (
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/go-sql-driver/mysql"
	"go.yaml.in/yaml/v4"
)

// form is one kind of address with credentials. Its messages never hold any part of the address: the drivers'
// own errors quote it.
type form struct {
	want  string
	valid func(string) bool
	wrap  func(string) Secret
	// mistake, where it is set, knows better what is wrong.
	mistake func(string) string
}

func redisForm() form {
	return form{
		want:  `a Redis URL, as in "redis://user:password@host:6379/0" (a special character of a password as %XX)`,
		valid: validRedis, wrap: RedisSecret, mistake: redisMistake,
	}
}

func mysqlForm() form {
	return form{
		want:  `a MySQL DSN with its database, as in "user:password@tcp(host:3306)/database"`,
		valid: validMySQL, wrap: MySQLSecret,
	}
}

// secret reads an address with credentials.
func (r *reader) secret(into *Secret, f form) read {
	return func(n *yaml.Node, path string) {
		s, ok := r.scalar(n, path, f.want, "!!str")
		if !ok {
			return
		}
		r.take(n, path, s, into, f)
	}
}

// secretFile reads an address from a file of its own, as orchestrators mount secrets.
func (r *reader) secretFile(into *Secret, f form) read {
	return func(n *yaml.Node, path string) {
		name, ok := r.scalar(n, path, "the name of a file", "!!str")
		if !ok {
			return
		}
		if name == "" {
			r.wrong(n, path, "is empty: write the name of a file, or remove the key")
			return
		}
		data, err := r.readFile(r.beside(name))
		if err != nil {
			r.wrong(n, path, "the file %q %v", clip(n.Value), err)
			return
		}
		r.take(n, path, strings.TrimRight(string(data), "\r\n"), into, f)
	}
}

func (r *reader) take(n *yaml.Node, path, s string, into *Secret, f form) {
	if u, err := url.Parse(s); err == nil && u.Scheme != "" && !validPort(u.Port()) {
		r.wrong(n, path, "its port is out of range: use 1 to 65535 (the address is not shown: it may hold a password)")
		return
	}
	if f.mistake != nil {
		if what := f.mistake(s); what != "" {
			r.wrong(n, path, "%s (the address is not shown: it may hold a password)", what)
			return
		}
	}
	if !f.valid(s) {
		r.wrong(n, path, "is not usable (not shown: it may hold a password): write %s", f.want)
		return
	}
	*into = f.wrap(s)
}

// validPort refuses a port of a URL that no server can have. None is the usual one.
func validPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return s == "" || err == nil && n > 0
}

func validMySQL(s string) bool {
	if strings.ContainsAny(s, "\r\n\x00") {
		return false
	}
	c, err := mysql.ParseDSN(s)
	return err == nil && c.DBName != "" && (c.Net != "tcp" || validHostPort(c.Addr))
}

// validHostPort refuses a port that no server can have, and brackets that belong to the DSN's own form.
func validHostPort(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil || strings.ContainsAny(host, "()/@ ") {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// schemaOf names the schema that a DSN points to, without its credentials.
func schemaOf(s Secret) string {
	if s.IsZero() {
		return ""
	}
	c, err := mysql.ParseDSN(s.Reveal())
	if err != nil {
		return ""
	}
	return c.Net + "(" + c.Addr + ")/" + c.DBName
}

// StoresID is a fingerprint of the pod's two stores, by where they are and not by how one gets in: two configurations
// that give the same one mean the same stores.
func (p Pod) StoresID() string {
	where := "redis"
	if u, err := url.Parse(p.Redis.Reveal()); err == nil {
		q := u.Query()
		for k := range q {
			if k != "addr" && k != "master_name" && k != "db" {
				q.Del(k)
			}
		}
		where = u.Host + u.Path + "?" + q.Encode()
	}
	sum := sha256.Sum256([]byte(p.ID + "\n" + where + "\n" + schemaOf(p.MySQL)))
	return hex.EncodeToString(sum[:16])
}
