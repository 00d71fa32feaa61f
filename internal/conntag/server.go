package conntag

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// What the server's own tables keep of a tag, as seen on 9.7: digest texts drop comments, QUERY_SAMPLE_TEXT and
// SQL_TEXT keep them. The history_long table is off by default, so the sums come from the digests, each of which is
// put to the tag of its sample: two tags on statements of the very same shape end in one of them.
const (
	qDigests = `SELECT /* conn_tag:conns */ COALESCE(LEFT(QUERY_SAMPLE_TEXT, 160), ''), COUNT_STAR, SUM_TIMER_WAIT, MAX_TIMER_WAIT, SUM_LOCK_TIME, SUM_ERRORS
FROM performance_schema.events_statements_summary_by_digest WHERE SCHEMA_NAME = DATABASE()`
	qOverflow = `SELECT /* conn_tag:conns */ COALESCE(SUM(COUNT_STAR), 0) FROM performance_schema.events_statements_summary_by_digest WHERE DIGEST IS NULL`
	qNow      = `SELECT /* conn_tag:conns */ LEFT(s.SQL_TEXT, 160), s.END_EVENT_ID IS NULL
FROM performance_schema.events_statements_current s
JOIN performance_schema.threads t ON t.THREAD_ID = s.THREAD_ID
LEFT JOIN performance_schema.events_transactions_current x ON x.THREAD_ID = s.THREAD_ID
WHERE s.CURRENT_SCHEMA = DATABASE() AND s.NESTING_EVENT_LEVEL = 0 AND s.SQL_TEXT IS NOT NULL
  AND t.PROCESSLIST_ID <> CONNECTION_ID() AND (s.END_EVENT_ID IS NULL OR x.STATE = 'ACTIVE' AND x.AUTOCOMMIT = 'NO')`
	qWatching = "SELECT /* conn_tag:conns */ @@performance_schema"
	qAccount  = "SELECT /* conn_tag:conns */ CURRENT_USER()"
	// EXPLAIN needs the rights of what it explains, whichever way they were given, and reads nothing.
	explain = "EXPLAIN "
)

// ServerUsage is what the server itself counts of one tag in the connection's schema, over all clients, since its
// tables were last emptied (a restart does that).
type ServerUsage struct {
	Tag        string
	Statements int64
	Errors     int64
	// Total is the server's time for all statements, Longest for one of them, Locked the part of Total for which they
	// waited for locks.
	Total, Longest, Locked time.Duration
	// Running is how many execute now, IdleInTransaction how many connections hold a transaction open and have said
	// nothing since a statement of this tag.
	Running, IdleInTransaction int
}

// ErrBlind: the server does not count statements.
var ErrBlind = errors.New("this MySQL runs with performance_schema=OFF, so it does not count statements")

// OnServer gives what the server counts by tag in the schema of db, the most time first, and how many statements of
// the whole server it could put to no digest, since its table of them is full.
func OnServer(ctx context.Context, db *sql.DB) (usage []ServerUsage, lost int64, err error) {
	var on bool
	if err := db.QueryRowContext(ctx, qWatching).Scan(&on); err != nil {
		return nil, 0, fmt.Errorf("conntag: ask the server: %w", err)
	}
	if !on {
		return nil, 0, ErrBlind
	}
	byTag := map[string]*ServerUsage{}
	if err := digests(ctx, db, byTag); err != nil {
		return nil, 0, fmt.Errorf("conntag: read the statement digests: %w", err)
	}
	if err := rightNow(ctx, db, byTag); err != nil {
		return nil, 0, fmt.Errorf("conntag: read the current statements: %w", err)
	}
	if err := db.QueryRowContext(ctx, qOverflow).Scan(&lost); err != nil {
		return nil, 0, fmt.Errorf("conntag: read the statement digests: %w", err)
	}
	for _, u := range byTag {
		usage = append(usage, *u)
	}
	slices.SortFunc(usage, func(a, b ServerUsage) int { return cmp.Or(cmp.Compare(b.Total, a.Total), cmp.Compare(a.Tag, b.Tag)) })
	return usage, lost, nil
}

// MayAskServer is nil where the account of db may read what OnServer reads; else what the server says.
func MayAskServer(ctx context.Context, db *sql.DB) error {
	for _, q := range []string{qDigests, qNow} {
		if err := try(ctx, db, explain+q); err != nil {
			return fmt.Errorf("conntag: %w", err)
		}
	}
	return nil
}

func try(ctx context.Context, db *sql.DB, query string) error {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close()
	return errors.Join(rows.Err(), rows.Close())
}

// ServerRight is what OnServer needs.
const ServerRight = "SELECT ON performance_schema.*"

// GrantForServer is the statement that lets the account of db read what OnServer reads.
func GrantForServer(ctx context.Context, db *sql.DB) (string, error) {
	var account string
	if err := db.QueryRowContext(ctx, qAccount).Scan(&account); err != nil {
		return "", fmt.Errorf("conntag: ask for the account: %w", err)
	}
	at := strings.LastIndexByte(account, '@') // a host has none
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	return "GRANT " + ServerRight + " TO " + quote(account[:at]) + "@" + quote(account[at+1:]), nil
}

// of finds the entry of a statement's tag.
func of(byTag map[string]*ServerUsage, text string) *ServerUsage {
	name, ok := tagOf(text)
	if !ok {
		name = Untagged
	}
	u := byTag[name]
	if u == nil {
		u = &ServerUsage{Tag: name}
		byTag[name] = u
	}
	return u
}

// picosecondsPerNanosecond: a picosecond is the unit of the server's timers.
const picosecondsPerNanosecond = 1000

func digests(ctx context.Context, db *sql.DB, byTag map[string]*ServerUsage) error {
	rows, err := db.QueryContext(ctx, qDigests)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var (
			text                   string
			statements, failed     int64
			total, longest, locked uint64
			inNanoseconds          = func(p uint64) time.Duration { return time.Duration(p / picosecondsPerNanosecond) } //nolint:gosec // 2^64 ps are 213 days: it fits
		)
		if err := rows.Scan(&text, &statements, &total, &longest, &locked, &failed); err != nil {
			return err
		}
		u := of(byTag, text)
		u.Statements += statements
		u.Errors += failed
		u.Total += inNanoseconds(total)
		u.Longest = max(u.Longest, inNanoseconds(longest))
		u.Locked += inNanoseconds(locked)
	}
	return rows.Err()
}

func rightNow(ctx context.Context, db *sql.DB, byTag map[string]*ServerUsage) error {
	rows, err := db.QueryContext(ctx, qNow)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		var running bool
		if err := rows.Scan(&text, &running); err != nil {
			return err
		}
		if running {
			of(byTag, text).Running++
		} else {
			of(byTag, text).IdleInTransaction++
		}
	}
	return rows.Err()
}
