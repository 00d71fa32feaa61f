package conntag_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/twinhold/twinhold/internal/conntag"
	"github.com/twinhold/twinhold/internal/devstack"
	"github.com/twinhold/twinhold/internal/devstack/devtest"
)

func (r *rig) server() map[string]conntag.ServerUsage {
	r.Helper()
	all, lost, err := conntag.OnServer(r.Context(), r.db)
	if err != nil || lost != 0 {
		r.Fatal(lost, err)
	}
	byTag := map[string]conntag.ServerUsage{}
	for _, u := range all {
		byTag[u.Tag] = u
	}
	return byTag
}

// The server counts the same statements under the same tags.
func TestTheServerSeesTheSameTags(t *testing.T) {
	t.Parallel()
	r := newRig(t, real)
	r.db.SetMaxIdleConns(8) // no connection is closed, so that those that were made can be told
	r.exec(r.db, "/* conn_tag:setup */ CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL DEFAULT 0)")
	for n := range 7 {
		r.exec(r.db, "/* conn_tag:put */ INSERT INTO t (id) VALUES (?)", n)
	}
	r.exec(r.db, "UPDATE /* conn_tag:middle */ t SET n = 1")
	r.exec(r.db, "DELETE FROM t WHERE id = 6")
	holder := r.begin("/* conn_tag:holder */ UPDATE t SET n = 2 WHERE id = ?", 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := r.db.ExecContext(ctx, "/* conn_tag:waiter */ UPDATE t SET n = n + 1 WHERE id = 1")
		ended <- err
	}()
	devtest.Until(t, "the server runs the one and holds the other", func() bool {
		now := r.server()
		return now["waiter"].Running == 1 && now["holder"].IdleInTransaction == 1 && now["holder"].Running == 0
	})
	if err := holder.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	cancel()
	_, err := r.db.ExecContext(t.Context(), "/* conn_tag:put */ INSERT INTO t (id) VALUES (1)")
	wantNumber(t, err, 1062)

	const slack = 50 * time.Millisecond // the server's clock is another, and it counts what follows its reply
	server := r.server()
	for _, u := range r.meter.Usage() {
		if u.Tag == "conns" || u.Tag == "driver.begin" || u.Tag == "driver.rollback" || u.Tag == conntag.Untagged {
			continue
		}
		if s := server[u.Tag]; s.Statements != u.Statements || s.Total <= 0 || s.Total > u.Held+slack || s.Longest > s.Total || s.Running+s.IdleInTransaction != 0 {
			t.Errorf("we count %+v, the server %+v", u, s)
		}
	}
	if put := server["put"]; put.Statements != 8 || put.Errors != 1 {
		t.Errorf("put: %+v", put)
	}
	if w := server["waiter"]; w.Locked <= 0 || w.Locked > w.Total {
		t.Errorf("the one who waited: %+v", w)
	}
	// START TRANSACTION, ROLLBACK, the DELETE without a tag, and one SET for each connection, by the driver.
	if u, conns := server[conntag.Untagged], r.db.Stats().OpenConnections; u.Statements != int64(3+conns) {
		t.Errorf("without a tag, %d connections: %+v", conns, u)
	}
}

// The limit of it: statements of one shape are one digest, with one sample, so one tag gets them all.
func TestOneShapeIsOneTagOnTheServer(t *testing.T) {
	t.Parallel()
	r := newRig(t, real)
	r.exec(r.db, "/* conn_tag:one */ DO 1 + 1")
	r.exec(r.db, "/* conn_tag:two */ DO 2 + 2")
	if s := r.server(); s["one"].Statements+s["two"].Statements != 2 || s["one"].Statements == 1 {
		t.Errorf("%+v", s)
	}
}

func TestAServerThatCountsNothing(t *testing.T) {
	t.Parallel()
	stack := devtest.Private(t, devstack.Options{MySQL: true, MySQLArgs: []string{"--performance-schema=OFF"}})
	cfg, err := mysql.ParseDSN(stack.MySQL.DSN(""))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Timeout = time.Second
	c, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(c)
	defer db.Close()
	if _, _, err := conntag.OnServer(t.Context(), db); !errors.Is(err, conntag.ErrBlind) {
		t.Error(err)
	}
}
