package devstack

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
)

// MySQL is one private mysqld. Its administrator is root without a password.
type MySQL struct {
	*Server
	// Version is what the server says of itself: "9.7.4-2".
	Version string
}

// AddMySQL starts a further mysqld in the stack. Its data folder is a copy of a
// prepared one. Row-based binary log, flush and sync at every commit; args come
// after that and win.
func (s *Stack) AddMySQL(ctx context.Context, args ...string) (*MySQL, error) {
	prog, err := findMySQL(ctx, s.dev, s.progress)
	if err != nil {
		return nil, err
	}
	template, err := mysqlTemplate(ctx, s.dev, prog, s.progress)
	if err != nil {
		return nil, err
	}
	srv, err := s.newServer("mysqld")
	if err != nil {
		return nil, err
	}
	m := &MySQL{Server: srv}
	if err := copyTree(ctx, template, srv.DataDir()); err != nil {
		return nil, fmt.Errorf("devstack: copying the data folder: %w", err)
	}
	// The name by which a mysqld on our port is known to be ours.
	name := "twinhold-" + filepath.Base(s.run.path) + "-" + filepath.Base(srv.dir)
	conf := filepath.Join(srv.dir, "my.cnf")
	if err := os.WriteFile(conf, []byte(mysqlConfig(prog, srv.dir, name)), 0o644); err != nil {
		return nil, fmt.Errorf("devstack: %w", err)
	}
	srv.command = func(port int) (string, []string) {
		own := []string{"--defaults-file=" + conf, fmt.Sprintf("--port=%d", port)}
		return prog.command(append(own, args...)...)
	}
	srv.ready = func(ctx context.Context, _ int) error { return m.answers(ctx, name) }
	began := time.Now()
	if err := srv.Start(ctx); err != nil {
		return nil, err
	}
	s.progress(fmt.Sprintf("mysqld %s on %s in %.1f s", m.Version, m.Addr(), time.Since(began).Seconds()))
	return m, nil
}

func (m *MySQL) answers(ctx context.Context, name string) error {
	db, err := openMySQL(m.Addr())
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var reported, version string
	if err := db.QueryRowContext(ctx, "SELECT @@report_host, VERSION()").Scan(&reported, &version); err != nil {
		return fmt.Errorf("devstack: %w", err)
	}
	if reported != name {
		return fmt.Errorf("devstack: another MySQL listens on %s", m.Addr())
	}
	if m.Version == "" { // a restart changes nothing, and readers need no lock
		m.Version = version
	}
	return nil
}

func openMySQL(addr string) (*sql.DB, error) {
	cfg := mysql.NewConfig()
	cfg.User, cfg.Net, cfg.Addr = "root", "tcp", addr
	cfg.Timeout = 2 * time.Second
	cfg.Logger = &mysql.NopLogger{} // refused connections are what a start looks like
	c, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("devstack: %w", err)
	}
	return sql.OpenDB(c), nil
}

// DSN is the administrator's data source name, for a schema or for none ("").
// It has no parameters; the user adds his own after "?".
func (m *MySQL) DSN(schema string) string {
	return fmt.Sprintf("root@tcp(%s)/%s", m.Addr(), schema)
}

// CreateSchema creates an empty schema.
func (m *MySQL) CreateSchema(ctx context.Context, name string) error {
	return m.schema(ctx, "CREATE DATABASE ", name)
}

// DropSchema removes a schema with all it holds, if it is there.
func (m *MySQL) DropSchema(ctx context.Context, name string) error {
	return m.schema(ctx, "DROP DATABASE IF EXISTS ", name)
}

func (m *MySQL) schema(ctx context.Context, verb, name string) error {
	if !regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`).MatchString(name) {
		return fmt.Errorf("devstack: %q is no name for a schema", name)
	}
	db, err := openMySQL(m.Addr())
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, verb+"`"+name+"`"); err != nil {
		return fmt.Errorf("devstack: %s%s: %w", strings.ToLower(verb), name, err)
	}
	return nil
}

// mysqlConfig is the option file of a running server. The socket's path is
// relative to the data folder, since a whole one may be too long for a socket.
func mysqlConfig(prog *program, dir, name string) string {
	lines := append(mysqlBase(prog, filepath.Join(dir, "data")),
		"log-error="+filepath.Join(dir, "mysqld.log"),
		"pid-file="+filepath.Join(dir, "mysqld.pid"),
		"socket=mysqld.sock",
		"report-host="+name,
		"bind-address=127.0.0.1",
		"skip-name-resolve=1",
		"max_connections=400",
		"innodb_buffer_pool_size=256M",
		"loose_innodb_redo_log_capacity=128M",
		"innodb_flush_log_at_trx_commit=1",
		"sync_binlog=1",
		"server-id=1",
	)
	return strings.Join(lines, "\n") + "\n"
}

// mysqlBase are the options that initialising and running have in common.
func mysqlBase(prog *program, data string) []string {
	lines := []string{
		"[mysqld]",
		"datadir=" + data,
		"mysqlx=0",
		"secure-file-priv=",
		"character-set-server=utf8mb4",
	}
	if prog.prefix != "" {
		lines = append(lines,
			"basedir="+filepath.Join(prog.prefix, "usr"),
			"lc-messages-dir="+filepath.Join(prog.prefix, "usr/share/mysql"),
			"character-sets-dir="+filepath.Join(prog.prefix, "usr/share/mysql/charsets"),
			"plugin-dir="+filepath.Join(prog.prefix, "usr/lib/mysql/plugin"),
		)
	}
	if os.Geteuid() == 0 {
		lines = append(lines, "user=root")
	}
	return lines
}
