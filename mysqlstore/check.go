package mysqlstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Finding is one thing that the store needs of its server, and what was found.
type Finding struct {
	// Check names it: version, skip_locked, binlog_format, clock, schema, fence.
	Check string
	OK    bool
	// Found is what the server says, Hint what to do where that is not enough.
	Found, Hint string
}

// maxClockDifference is how far the process's clock may be from MySQL's: what is due is judged by MySQL's, what is
// late in Redis by Redis's, and payment.clock_skew covers this much.
const maxClockDifference = 2 * time.Second

// CheckSchema refuses a schema that is behind this program, or not there. A server that does not answer is an
// *UnavailableError.
func (s *Store) CheckSchema(ctx context.Context) error {
	ctx, cancel := s.withBudget(ctx)
	defer cancel()
	if err := s.db.PingContext(ctx); err != nil {
		return unavailable(err)
	}
	f := s.schemaFinding(ctx)
	if !f.OK {
		return fmt.Errorf("mysqlstore: schema: %s: %s", f.Found, f.Hint)
	}
	return nil
}

// Check compares the server with what the store assumes. The error says only that it could not be asked.
func (s *Store) Check(ctx context.Context) ([]Finding, error) {
	var (
		version, comment, format string
		logBin                   bool
		now                      time.Time
	)
	sent := s.opts.Now()
	err := s.read(ctx, "check", func(ctx context.Context) error {
		sent = s.opts.Now()
		return one(ctx, s.db, []any{&version, &comment, &format, &logBin, &now}, qServer)
	})
	if err != nil {
		return nil, err
	}
	took := s.opts.Now().Sub(sent)
	skip := s.skipFinding(ctx)
	return []Finding{
		versionFinding(version, comment), skip, binlogFinding(format, logBin),
		clockFinding(now.Sub(sent.Add(took/2)), took), s.schemaFinding(ctx), s.fenceFinding(ctx),
	}, nil
}

func versionFinding(version, comment string) Finding {
	f := Finding{Check: "version", Found: version + ", " + strings.Trim(comment, "()")}
	if strings.Contains(strings.ToLower(version+comment), "mariadb") {
		f.Hint = "MariaDB lacks what the store relies on: use MySQL 8.0.19 or later"
		return f
	}
	f.OK = atLeast(version, 8, 0, 19)
	if !f.OK {
		f.Hint = "use MySQL 8.0.19 or later"
	}
	return f
}

// atLeast compares the leading numbers of a version.
func atLeast(version string, want ...int) bool {
	number, _, _ := strings.Cut(version, "-")
	parts := strings.Split(number, ".")
	for n, w := range want {
		if n >= len(parts) {
			return false
		}
		have, err := strconv.Atoi(parts[n])
		if err != nil || have < w {
			return false
		}
		if have > w {
			return true
		}
	}
	return true
}

func (s *Store) skipFinding(ctx context.Context) Finding {
	f := Finding{Check: "skip_locked", Found: "works", OK: true}
	err := s.inTx(ctx, s.opts.WriteTimeout, qIsolateRC, qStart, func(ctx context.Context, t *tx) error {
		_, err := exec(ctx, t.conn, qTrySkip, []byte(s.opts.Pod))
		return err
	})
	if err != nil {
		f.OK, f.Found, f.Hint = false, err.Error(), "SELECT ... FOR UPDATE SKIP LOCKED has to work for this user"
	}
	return f
}

func binlogFinding(format string, logBin bool) Finding {
	f := Finding{Check: "binlog_format", Found: format, OK: strings.EqualFold(format, "ROW")}
	if !logBin {
		f.Found += ", log_bin off"
	}
	if !f.OK {
		f.Hint = "set binlog_format=ROW: READ COMMITTED and SKIP LOCKED are not safe to replicate by statement"
	}
	return f
}

func clockFinding(diff, took time.Duration) Finding {
	f := Finding{Check: "clock", Found: fmt.Sprintf("MySQL is %v ahead of this process, within %v", diff.Round(time.Millisecond), took.Round(time.Millisecond))}
	f.OK = diff.Abs() <= maxClockDifference+took
	if !f.OK {
		f.Hint = "synchronise the clocks (chrony, NTP): expiry is judged by each store's own"
	}
	return f
}

func (s *Store) schemaFinding(ctx context.Context) Finding {
	f := Finding{Check: "schema"}
	p, err := provider(s.db)
	if err != nil {
		f.Found = err.Error()
		return f
	}
	current, target, err := p.GetVersions(ctx)
	switch {
	case err != nil:
		f.Found, f.Hint = err.Error(), "run twinhold migrate"
	case current < target:
		f.Found, f.Hint = fmt.Sprintf("version %d, this program needs %d", current, target), "run twinhold migrate"
	default:
		f.OK, f.Found = true, fmt.Sprintf("version %d", current)
	}
	return f
}

func (s *Store) fenceFinding(ctx context.Context) Finding {
	f := Finding{Check: "fence"}
	fence, err := s.ReadFence(ctx)
	switch {
	case err != nil:
		f.Found = err.Error()
	case fence.Epoch == 0:
		f.OK, f.Found = true, "none yet"
	default:
		f.OK, f.Found = true, describe(fence)
	}
	return f
}

func describe(f reservation.Fence) string {
	said := fmt.Sprintf("epoch %d, %s", f.Epoch, f.Stage)
	if f.Frozen {
		said += ", frozen"
	}
	if n := len(f.FrozenBuckets); n > 0 {
		said += fmt.Sprintf(", %d buckets frozen", n)
	}
	if f.Marks > 0 {
		said += fmt.Sprintf(", %d marks", f.Marks)
	}
	return said
}
