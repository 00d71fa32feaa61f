package conntag

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Wrap gives a connector whose connections are metered: sql.OpenDB(meter.Wrap(c)).
func (m *Meter) Wrap(c driver.Connector) driver.Connector { return &connector{Connector: c, meter: m} }

type connector struct {
	driver.Connector
	meter *Meter
}

// fullConn is what the MySQL driver's connections can do, and what database/sql looks for.
type fullConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.NamedValueChecker
	driver.SessionResetter
	driver.Validator
	driver.Pinger
}

// Connect implements driver.Connector.
func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	inner, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	full, ok := inner.(fullConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("conntag: a connection of %T lacks an interface that go-sql-driver/mysql has", c.Driver()), inner.Close())
	}
	mc := &conn{fullConn: full, meter: c.meter}
	c.meter.add(mc)
	return mc, nil
}

// Close implements io.Closer, for a connector that is one.
func (c *connector) Close() error {
	if inner, ok := c.Connector.(io.Closer); ok {
		return inner.Close()
	}
	return nil
}

// conn is one connection. database/sql uses it by one caller at a time; the lock is for whoever reads the figures
// meanwhile.
type conn struct {
	fullConn
	meter *Meter

	mu  sync.Mutex
	out bool
	// who has the connection: the statement under way, or the last one; nil before the first of a checkout.
	who *tally
	// since is when who began to have it, counted up to when its time was last put down.
	since, counted time.Time
}

// checkOut begins a hold. The connection's first user is not announced by ResetSession: then the first thing that
// happens on it is the beginning.
func (c *conn) checkOut(now time.Time) {
	if c.out {
		return
	}
	c.out, c.who, c.since, c.counted = true, nil, now, now
}

// pass puts the time up to now to whoever has the connection, and gives it to the next.
func (c *conn) pass(now time.Time, next *tally) {
	if c.who == nil {
		c.who = next // the time from the checkout on is the first statement's
		return
	}
	c.put(now)
	c.who, c.since = next, now
}

// put counts up to now.
func (c *conn) put(now time.Time) {
	c.who.hold(now.Sub(c.counted), now.Sub(c.since))
	c.counted = now
}

// checkIn ends a hold: the connection is back in the pool, or closed.
func (c *conn) checkIn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.out {
		return
	}
	if c.who == nil {
		c.who = c.meter.tags.find(Idle)
	}
	c.put(c.meter.now())
	c.out, c.who = false, nil
}

// settle counts up to now, and gives who has the connection; nil: nobody.
func (c *conn) settle() *tally {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.out {
		return nil
	}
	if c.who == nil {
		return c.meter.tags.find(Idle) // its time is put down once it is known whose it is
	}
	c.put(c.meter.now())
	return c.who
}

// running is a statement under way.
type running struct {
	tally *tally
	began time.Time
}

func (c *conn) start(query string) running {
	name, ok := tagOf(query)
	if !ok {
		name = Untagged
	}
	return c.startAs(c.meter.tags.find(name))
}

func (c *conn) startAs(t *tally) running {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.meter.now() // under the lock: a reader's settling is before it or after it
	c.checkOut(now)
	c.pass(now, t)
	return running{t, now}
}

// end counts a statement. One that the driver declines to run as it is (ErrSkip) comes again, prepared.
func (c *conn) end(r running, err error) {
	c.mu.Lock()
	now := c.meter.now()
	if c.who != nil {
		c.put(now)
	}
	c.mu.Unlock()
	if errors.Is(err, driver.ErrSkip) {
		return
	}
	r.tally.statements.Add(1)
	r.tally.observe(now.Sub(r.began).Seconds())
	if err != nil {
		r.tally.fail(err)
	}
}

// ExecContext implements driver.ExecerContext.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	r := c.start(query)
	res, err := c.fullConn.ExecContext(ctx, query, args)
	c.end(r, err)
	return res, err
}

// QueryContext implements driver.QueryerContext.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	r := c.start(query)
	rows, err := c.fullConn.QueryContext(ctx, query, args)
	c.end(r, err)
	return watched(rows, r.tally), err
}

// PrepareContext implements driver.ConnPrepareContext. To prepare is a statement's time, but no statement.
func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	r := c.start(query)
	inner, err := c.fullConn.PrepareContext(ctx, query)
	if err != nil {
		c.end(r, err)
		return nil, err
	}
	c.end(r, driver.ErrSkip)
	full, ok := inner.(fullStmt)
	if !ok {
		return inner, nil
	}
	return &stmt{fullStmt: full, conn: c, tally: r.tally}, nil
}

// Prepare implements driver.Conn.
func (c *conn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

// BeginTx implements driver.ConnBeginTx.
func (c *conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	r := c.startAs(c.meter.tags.find(driverBegin))
	inner, err := c.fullConn.BeginTx(ctx, opts)
	c.end(r, err)
	if err != nil {
		return nil, err
	}
	return &tx{Tx: inner, conn: c}, nil
}

// Begin implements driver.Conn.
func (c *conn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

// Ping implements driver.Pinger.
func (c *conn) Ping(ctx context.Context) error {
	r := c.startAs(c.meter.tags.find(driverPing))
	err := c.fullConn.Ping(ctx)
	c.end(r, err)
	return err
}

// ResetSession implements driver.SessionResetter: database/sql calls it at each checkout but a connection's first.
func (c *conn) ResetSession(ctx context.Context) error {
	c.mu.Lock()
	c.checkOut(c.meter.now())
	c.mu.Unlock()
	return c.fullConn.ResetSession(ctx)
}

// IsValid implements driver.Validator: database/sql calls it at each return.
func (c *conn) IsValid() bool {
	c.checkIn()
	return c.fullConn.IsValid()
}

// Close implements driver.Conn.
func (c *conn) Close() error {
	c.checkIn()
	c.meter.remove(c)
	return c.fullConn.Close()
}
