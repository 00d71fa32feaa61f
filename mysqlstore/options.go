package mysqlstore

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/twinhold/twinhold/reservation"
)

// Options configure a Store. DSN and Pod are required; a zero value elsewhere takes the default.
type Options struct {
	// DSN is the pod's own schema, as go-sql-driver writes it. What the store relies on (UTC, strict mode, the lock
	// wait) is set over whatever it says.
	DSN string
	// Pod names the row of pod_fence.
	Pod string

	// PoolSize is the largest number of unit rows of a bucket. Default 1000.
	PoolSize int
	// LargeCart is the number of units above which a cart is served from unpooled first. Default 1000.
	LargeCart int64
	// Retention is how long a record is kept past its expiry. Default 48h.
	Retention time.Duration
	// LatePolicy is what a late claim does when nothing is available. Default reservation.ForceLate.
	LatePolicy reservation.LatePolicy

	// Deadline bounds one operation with its retries, where the caller's own deadline is not nearer. Default 10s.
	Deadline time.Duration
	// Attempts bounds the tries of one transaction that a deadlock, a lock wait or a lost connection ended. Default 40.
	Attempts int
	// WriteTimeout limits one write transaction; a cart gets as much again for every 250 lines. Default 1s.
	WriteTimeout time.Duration
	// LockWait is innodb_lock_wait_timeout of our connections, in whole seconds, 1s to 3s. Default 1s.
	LockWait time.Duration
	// MaxOpenConns bounds the connections. Default 32. With 8 and more, a quarter of them carries the shared
	// transactions.
	MaxOpenConns int

	// Budgets divide the connections between classes of work.
	Budgets Budgets

	// LowWater is the part of PoolSize below which a pool is refilled in the background; below 0, none is. Default 0.3.
	LowWater float64
	// SweepRate is how many rows a second sweeps expire and purge, in small transactions with pauses between them; below 0,
	// as many as they can. Default 20,000.
	SweepRate float64
	// MirrorGather is how long a mirrored operation, for which nobody waits, waits for others to share its transaction; below
	// 0, not at all. Default 20ms.
	MirrorGather time.Duration
	// NoLanes gives each caller a transaction of its own, and a look of its own at what is sold out.
	NoLanes bool
	// NoMultiStatements sends the statements of a shared transaction one by one, for servers and proxies that do not
	// take several in one packet.
	NoMultiStatements bool

	// Wrap, if not nil, is given the driver's connector and gives the one to connect by: it meters, and changes nothing.
	Wrap func(driver.Connector) driver.Connector

	Logger     *slog.Logger
	Registerer prometheus.Registerer
	// Failpoint, if not nil, is called with the name of each step inside a write transaction: "claim.ledger",
	// "claim.commit" (before it), "claim.committed". Tests end the process there.
	Failpoint func(step string)
	// Lazy makes Open ask the server nothing: a router whose Redis decides starts while its MySQL is down. CheckSchema
	// is then the caller's to call.
	Lazy bool
	// Now is the process's clock. It measures durations only: what is due or late is judged by MySQL's.
	Now func() time.Time
}

const (
	defaultPoolSize     = 1000
	defaultLargeCart    = 1000
	defaultRetention    = 48 * time.Hour
	defaultDeadline     = 10 * time.Second
	defaultAttempts     = 40
	defaultWriteTimeout = time.Second
	defaultLockWait     = time.Second
	defaultMaxOpenConns = 32
	dialTimeout         = 2 * time.Second
	// sessionIdle is how long the server keeps a session that says nothing. A process that is stopped in the middle of
	// a transaction holds up a raise of the fence that long and no longer. Our own pool gives up idle ones before.
	sessionIdle = 30 * time.Second
	poolIdle    = 20 * time.Second
	maxLockWait = 3 * time.Second
	maxPoolSize = 100_000

	defaultLowWater  = 0.3
	defaultSweepRate = 20_000

	defaultMirrorGather = 20 * time.Millisecond
	// packetShare is the part of the connections that takes several statements at once, where there are so many.
	packetShare = 4
)

func (o Options) withDefaults() Options {
	if o.PoolSize == 0 {
		o.PoolSize = defaultPoolSize
	}
	if o.LargeCart == 0 {
		o.LargeCart = defaultLargeCart
	}
	if o.Retention == 0 {
		o.Retention = defaultRetention
	}
	if o.LatePolicy == 0 {
		o.LatePolicy = reservation.ForceLate
	}
	if o.Deadline == 0 {
		o.Deadline = defaultDeadline
	}
	if o.Attempts == 0 {
		o.Attempts = defaultAttempts
	}
	if o.WriteTimeout == 0 {
		o.WriteTimeout = defaultWriteTimeout
	}
	if o.LockWait == 0 {
		o.LockWait = defaultLockWait
	}
	if o.MaxOpenConns == 0 {
		o.MaxOpenConns = defaultMaxOpenConns
	}
	if o.LowWater == 0 {
		o.LowWater = defaultLowWater
	}
	if o.MirrorGather == 0 {
		o.MirrorGather = defaultMirrorGather
	}
	if o.SweepRate == 0 {
		o.SweepRate = defaultSweepRate
	}
	o.Budgets = o.Budgets.withDefaults(o.MaxOpenConns)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

func (o Options) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.DSN == "" {
		bad("DSN is empty: give user:password@tcp(host:port)/schema")
	}
	if o.Pod == "" || len(o.Pod) > 255 {
		bad("Pod has %d bytes: give the pod's id, 1 to 255 bytes", len(o.Pod))
	}
	if o.PoolSize < 1 || o.PoolSize > maxPoolSize {
		bad("PoolSize %d is out of range: use 1 to %d", o.PoolSize, maxPoolSize)
	}
	if o.LargeCart < 1 {
		bad("LargeCart %d is out of range: use 1 or more", o.LargeCart)
	}
	if o.Retention < 0 {
		bad("Retention %v is negative", o.Retention)
	}
	if p := o.LatePolicy; p != reservation.ForceLate && p != reservation.RefuseLate {
		bad("LatePolicy %d is neither force nor refuse", p)
	}
	if o.Deadline < 0 || o.Attempts < 1 {
		bad("Deadline %v and Attempts %d: use a positive time, and 1 or more", o.Deadline, o.Attempts)
	}
	if o.WriteTimeout < 0 {
		bad("WriteTimeout %v is negative", o.WriteTimeout)
	}
	if o.LockWait < time.Second || o.LockWait > maxLockWait || o.LockWait%time.Second != 0 {
		bad("LockWait %v is out of range: use 1s, 2s or 3s", o.LockWait)
	}
	if o.MaxOpenConns < 1 {
		bad("MaxOpenConns %d is out of range: use 1 or more", o.MaxOpenConns)
	}
	if err := o.Budgets.validate(o.MaxOpenConns); o.MaxOpenConns >= 1 && err != nil {
		errs = append(errs, err)
	}
	if math.IsNaN(o.SweepRate) {
		bad("SweepRate is not a number: use rows per second, or less than 0 for no limit")
	}
	if !(o.LowWater < 1) {
		bad("LowWater %v is out of range: use a part of the pool below 1, or less than 0 for none", o.LowWater)
	}
	if len(errs) > 0 {
		return fmt.Errorf("mysqlstore options: %w", errors.Join(errs...))
	}
	return nil
}

// OpenDB opens the schema that a DSN names, with the settings that this package relies on. It does not connect yet.
// Only LockWait, MaxOpenConns and Wrap of the options are used.
func OpenDB(dsn string, o Options) (*sql.DB, error) {
	return openDB(dsn, o, false)
}

// openDB is OpenDB; with packets, one packet may be several statements.
func openDB(dsn string, o Options, packets bool) (*sql.DB, error) {
	o = o.withDefaults()
	cfg, err := normalise(dsn, o.LockWait)
	if err != nil {
		return nil, err
	}
	if cfg.MultiStatements = packets; packets {
		cfg.Params["transaction_isolation"] = "'READ-COMMITTED'"
	}
	c, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("mysqlstore: DSN: %w", err)
	}
	if o.Wrap != nil {
		c = o.Wrap(c)
	}
	db := sql.OpenDB(c)
	db.SetMaxOpenConns(o.MaxOpenConns)
	db.SetMaxIdleConns(o.MaxOpenConns)
	db.SetConnMaxIdleTime(poolIdle)
	return db, nil
}

// normalise sets what the store relies on over whatever the DSN says, and refuses session variables that it does not
// know: times are UTC on both sides whatever the zones of server and process, errors are errors, rows are counted as
// matched, text is UTF-8 for both sides, and one packet is one statement.
func normalise(dsn string, lockWait time.Duration) (*mysql.Config, error) {
	cfg, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("mysqlstore: DSN: %w: use user:password@tcp(host:port)/schema", err)
	}
	if cfg.DBName == "" {
		return nil, errors.New("mysqlstore: DSN names no schema: add /schema after the address")
	}
	cfg.ParseTime = true
	cfg.Loc = time.UTC
	cfg.InterpolateParams = true
	cfg.ClientFoundRows = true
	cfg.MultiStatements = false
	cfg.AllowAllFiles = false
	cfg.Collation = "utf8mb4_bin"
	if cfg.Timeout == 0 {
		cfg.Timeout = dialTimeout
	}
	cfg.Logger = &mysql.NopLogger{} // what it would say comes back as an error too
	params := map[string]string{
		"time_zone":                "'+00:00'",
		"sql_mode":                 "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO'",
		"autocommit":               "1",
		"innodb_lock_wait_timeout": strconv.Itoa(int(lockWait / time.Second)),
		"wait_timeout":             strconv.Itoa(int(sessionIdle / time.Second)),
		// Arguments are written into the statement by the client: both sides have to read it alike, whatever the server's
		// own character set is.
		"character_set_client":  "'utf8mb4'",
		"collation_connection":  "'utf8mb4_bin'",
		"character_set_results": "'utf8mb4'",
	}
	for name := range cfg.Params {
		if _, ours := params[strings.ToLower(name)]; !ours {
			return nil, fmt.Errorf("mysqlstore: DSN: %s would be set as a session variable, and the store relies on its own: take it out", name)
		}
	}
	cfg.Params = params
	return cfg, nil
}
