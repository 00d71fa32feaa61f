package lab

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// lock is one record lock, as performance_schema.data_locks has it.
type lock struct{ index, mode, status, data string }

func (l lock) String() string { return fmt.Sprintf("%s on %s (%s)", l.mode, l.index, l.data) }

const supremum = "supremum pseudo-record"

// locksOf gives the record locks of a session in the scratch schema, those that it waits for included.
func (s *scratch) locksOf(ctx context.Context, who *session) (locks []lock, err error) {
	rows, err := s.db.QueryContext(ctx, qLocks, who.id)
	if err != nil {
		return nil, fmt.Errorf("read data_locks: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var l lock
		if err := rows.Scan(&l.index, &l.mode, &l.status, &l.data); err != nil {
			return nil, fmt.Errorf("read data_locks: %w", err)
		}
		locks = append(locks, l)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read data_locks: %w", err)
	}
	return locks, nil
}

// showLocks tells a session's record locks, and gives them.
func (s *scratch) showLocks(ctx context.Context, who *session, acc *account) ([]lock, error) {
	locks, err := s.locksOf(ctx, who)
	if err != nil {
		return nil, err
	}
	acc.say("   data_locks of %s: %s", who.name, locksText(locks))
	return locks, nil
}

// fewLocks is how many are told one by one.
const fewLocks = 3

func locksText(locks []lock) string {
	if len(locks) == 0 {
		return "no record lock"
	}
	words := make([]string, 0, fewLocks)
	for _, l := range locks[:min(len(locks), fewLocks)] {
		words = append(words, l.String())
	}
	text := fmt.Sprintf("%d record locks: ", len(locks))
	if len(locks) == 1 {
		text = "1 record lock: "
	}
	text += strings.Join(words, ", ")
	if len(locks) > fewLocks {
		text += ", ..."
	}
	return text
}

// count gives how many locks are of one index; "" counts all.
func count(locks []lock, index string) (n int64) {
	for _, l := range locks {
		if index == "" || l.index == index {
			n++
		}
	}
	return n
}

// wait is what one session waits for, as data_lock_waits has it.
type wait struct {
	lock
	blocker int64
}

// waitSeen bounds how long a wait is looked for.
const waitSeen = 2 * time.Second

// awaitWait looks until the server shows that B waits for A, or that the statement has ended without. It tells who
// waits for whom, and gives how many waits there are.
func (s *scratch) awaitWait(ctx context.Context, b, a *session, p *pending, acc *account) (int64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, waitSeen, errors.New("the server shows neither a wait nor the statement's end"))
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		w, err := s.waitsOf(ctx, b)
		if err != nil {
			return 0, err
		}
		for _, one := range w {
			if one.blocker == a.id {
				acc.say("   data_lock_waits: %s waits for %s: %s", b.name, a.name, one.lock)
				return int64(len(w)), nil
			}
		}
		select {
		case <-p.done:
			acc.say("   data_lock_waits: nothing, %s did not wait", b.name)
			return 0, nil
		case <-tick.C:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

func (s *scratch) waitsOf(ctx context.Context, who *session) (waits []wait, err error) {
	rows, err := s.db.QueryContext(ctx, qWaits, who.id)
	if err != nil {
		return nil, fmt.Errorf("read data_lock_waits: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var w wait
		if err := rows.Scan(&w.blocker, &w.index, &w.mode, &w.status, &w.data); err != nil {
			return nil, fmt.Errorf("read data_lock_waits: %w", err)
		}
		waits = append(waits, w)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read data_lock_waits: %w", err)
	}
	return waits, nil
}

// accessDenied is MySQL's ER_SPECIFIC_ACCESS_DENIED_ERROR: the user lacks PROCESS.
const accessDenied = 1227

// showStatus tells the lines of SHOW ENGINE INNODB STATUS that speak of the scratch schema, from the section on. It
// illustrates what data_locks has proved, so a user without PROCESS only misses the picture.
func (s *scratch) showStatus(ctx context.Context, section string, words []string, acc *account) error {
	var kind, name, text string
	err := s.db.QueryRowContext(ctx, qStatus).Scan(&kind, &name, &text)
	if n, other := number(err); other != nil {
		return fmt.Errorf("read INNODB STATUS: %w", err)
	} else if n == accessDenied {
		acc.say("   INNODB STATUS is not shown: the user lacks the PROCESS privilege")
		return nil
	} else if n != 0 {
		return fmt.Errorf("read INNODB STATUS: %w", err)
	}
	for _, line := range s.excerpt(text, section, words) {
		acc.say("   INNODB STATUS: %s", line)
	}
	return nil
}

// excerpt keeps the lines with one of the words, in the order of the text: lines about locks only where they are on
// the scratch schema's tables.
func (s *scratch) excerpt(text, section string, words []string) (lines []string) {
	_, text, _ = strings.Cut(text, section)
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "TRANSACTIONS" || line == "FILE I/O" {
			break // the next section
		}
		locks := strings.HasPrefix(line, "RECORD LOCKS")
		if locks && !strings.Contains(line, s.schema) {
			continue
		}
		for _, w := range words {
			if strings.Contains(line, w) {
				lines = append(lines, strings.ReplaceAll(line, "`"+s.schema+"`.", ""))
				break
			}
		}
	}
	return lines
}
