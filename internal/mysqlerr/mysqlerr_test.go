package mysqlerr_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/internal/mysqlerr"
)

func TestMain(m *testing.M) { devtest.Main(m, devtest.Needs{}) }

// What a real server answers has the right class.
func TestARealServersRefusals(t *testing.T) {
	t.Parallel()
	stack := devtest.Private(t, devstack.Options{MySQL: true})
	dsn := devtest.SchemaOn(t, stack.MySQL)
	admin := open(t, dsn)
	for _, q := range []string{"CREATE USER nobody", "GRANT SELECT ON " + schemaOf(t, dsn) + ".* TO nobody", "CREATE TABLE t (id INT)"} {
		if _, err := admin.ExecContext(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	nobody := open(t, strings.Replace(dsn, "root@", "nobody@", 1))
	for _, c := range []struct {
		db    *sql.DB
		query string
		want  mysqlerr.Class
	}{
		{admin, "SELECT 1", 0},
		{admin, "SELECT nothing", mysqlerr.Other},
		{admin, "SELECT * FROM no_table", mysqlerr.NoTable},
		{nobody, "CREATE DATABASE other", mysqlerr.Denied},
		{nobody, "INSERT INTO t VALUES (1)", mysqlerr.Denied},
		{nobody, "SET GLOBAL read_only = ON", mysqlerr.Denied},
		{open(t, strings.Replace(dsn, "root@", "somebody@", 1)), "SELECT 1", mysqlerr.Login},
		{open(t, strings.Replace(dsn, "root@", "nobody:wrong@", 1)), "SELECT 1", mysqlerr.Login},
		{open(t, strings.Replace(dsn, schemaOf(t, dsn), "no_schema", 1)), "SELECT 1", mysqlerr.NoSchema},
	} {
		_, err := c.db.ExecContext(t.Context(), c.query)
		want(t, c.query, err, c.want)
	}
	if _, err := admin.ExecContext(t.Context(), "SET GLOBAL super_read_only = ON"); err != nil {
		t.Fatal(err)
	}
	_, err := admin.ExecContext(t.Context(), "CREATE DATABASE other")
	want(t, "a server that takes no writes", err, mysqlerr.ReadOnly)
	if err := stack.MySQL.Kill(); err != nil {
		t.Fatal(err)
	}
	_, err = admin.ExecContext(t.Context(), "SELECT 1")
	want(t, "a server that is gone", err, mysqlerr.Unreachable)
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	_, err = admin.ExecContext(ctx, "SELECT 1")
	want(t, "a server that does not answer in time", err, mysqlerr.Unreachable)
}

// A disk is not filled for a test: these are the server's texts.
func TestAFullDisk(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		number uint16
		text   string
		want   mysqlerr.Class
	}{
		{3, "Error writing file './x/db.opt' (OS errno 28 - No space left on device)", mysqlerr.Full},
		{1006, "Can't create database 'x' (errno: 28 - No space left on device)", mysqlerr.Full},
		{1006, "Can't create database 'x' (errno: 13 - Permission denied)", mysqlerr.Other},
		{1021, "Disk full (/tmp); waiting for someone to free some space...", mysqlerr.Full},
		{1030, "Got error 168 - 'Unknown (generic) error from engine' from storage engine", mysqlerr.Other},
		{1114, "The table 'reservations' is full", mysqlerr.Full},
		{1290, "The MySQL server is running with the --secure-file-priv option so it cannot execute this statement", mysqlerr.Other},
	} {
		want(t, c.text, fmt.Errorf("create: %w", &mysql.MySQLError{Number: c.number, Message: c.text}), c.want)
	}
	want(t, "none of MySQL's", errors.New("something else"), mysqlerr.Other)
}

func want(t *testing.T, what string, err error, c mysqlerr.Class) {
	t.Helper()
	if got := mysqlerr.Of(err); got != c {
		t.Errorf("%s: %v is of class %d, want %d", what, err, got, c)
	}
}

func schemaOf(t *testing.T, dsn string) string {
	t.Helper()
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return c.DBName
}

func open(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatal(err)
	}
	c.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(c)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	t.Cleanup(func() { db.Close() })
	return db
}
