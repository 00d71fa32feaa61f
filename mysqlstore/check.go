package mysqlstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

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
	if f.Severity != reservation.Fine {
		return fmt.Errorf("mysqlstore: schema: %s: %s", f.Found, f.Fix)
	}
	return nil
}

// Check compares the server with what the store assumes. The error says only that it could not be asked.
func (s *Store) Check(ctx context.Context) ([]reservation.Finding, error) {
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
	return []reservation.Finding{
		versionFinding(version, comment), skip, binlogFinding(format, logBin),
		clockFinding(now.Sub(sent.Add(took/2)), took), s.schemaFinding(ctx), s.fenceFinding(ctx),
	}, nil
}

func versionFinding(version, comment string) reservation.Finding {
	well, fix := atLeast(version, 8, 0, 19), "use MySQL 8.0.19 or later"
	if strings.Contains(strings.ToLower(version+comment), "mariadb") {
		well, fix = false, "MariaDB lacks what the store relies on: "+fix
	}
	return reservation.Judge("version", well, reservation.Failure, version+", "+strings.Trim(comment, "()"), fix)
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

func (s *Store) skipFinding(ctx context.Context) reservation.Finding {
	found := "works"
	err := s.inTx(ctx, s.opts.WriteTimeout, qIsolateRC, qStart, func(ctx context.Context, t *tx) error {
		_, err := exec(ctx, t.conn, qTrySkip, []byte(s.opts.Pod))
		return err
	})
	if err != nil {
		found = err.Error()
	}
	return reservation.Judge("skip_locked", err == nil, reservation.Failure, found, "mend what else is found of this server first: SELECT ... FOR UPDATE SKIP LOCKED has to work for this user")
}

func binlogFinding(format string, logBin bool) reservation.Finding {
	well := strings.EqualFold(format, "ROW")
	if !logBin {
		format += ", log_bin off"
	}
	return reservation.Judge("binlog_format", well, reservation.Failure, format,
		"set binlog_format=ROW: READ COMMITTED and SKIP LOCKED are not safe to replicate by statement")
}

func clockFinding(diff, took time.Duration) reservation.Finding {
	return reservation.Judge("clock", diff.Abs() <= maxClockDifference+took, reservation.Failure,
		fmt.Sprintf("MySQL is %v ahead of this process, within %v", diff.Round(time.Millisecond), took.Round(time.Millisecond)),
		"synchronise the clocks (chrony, NTP): expiry is judged by each store's own")
}

func (s *Store) schemaFinding(ctx context.Context) reservation.Finding {
	current, target, err := s.versions(ctx)
	found := fmt.Sprintf("version %d", current)
	switch {
	case err != nil:
		found = err.Error()
	case current < target:
		found += fmt.Sprintf(", this program needs %d", target)
	}
	return reservation.Judge("schema", err == nil && current >= target, reservation.Failure, found, "run twinhold migrate")
}

// versions are the schema's version and the one that this program needs.
func (s *Store) versions(ctx context.Context) (current, target int64, err error) {
	p, err := provider(s.db)
	if err != nil {
		return 0, 0, err
	}
	return p.GetVersions(ctx)
}

func (s *Store) fenceFinding(ctx context.Context) reservation.Finding {
	fence, err := s.ReadFence(ctx)
	found := describe(fence)
	switch {
	case err != nil:
		found = err.Error()
	case fence.Epoch == 0:
		found = "none yet"
	}
	return reservation.Judge("fence", err == nil, reservation.Failure, found, "run twinhold migrate, and see that this user may read pod_fence")
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
