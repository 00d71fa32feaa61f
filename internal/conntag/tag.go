package conntag

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Names of what carries no tag of its own.
const (
	// Untagged is for statements without a tag.
	Untagged = "untagged"
	// Idle is for connections that were checked out and sent nothing.
	Idle = "idle"
	// Other is for statements with a tag, once there are maxTags of them: tags are constants of the program, and what
	// makes them up at run time must not fill the memory.
	Other = "other"

	driverBegin    = "driver.begin"
	driverCommit   = "driver.commit"
	driverRollback = "driver.rollback"
	driverPing     = "driver.ping"
)

const maxTags = 256

const (
	opening = "/* conn_tag:"
	// lookAhead is how far into a statement the comment may begin: "INSERT /* conn_tag:name */ INTO" is a tag too, a
	// comment in the middle of the values is not.
	lookAhead = 40
	maxName   = 64
)

// tagOf gives a statement's tag, or nothing. It allocates nothing.
func tagOf(query string) (string, bool) {
	at := 0
	if !strings.HasPrefix(query, opening) {
		at = strings.Index(query[:min(len(query), lookAhead+len(opening))], opening)
		if at < 0 {
			return "", false
		}
	}
	rest := query[at+len(opening):]
	n := 0
	for n < len(rest) && n <= maxName && isName(rest[n]) {
		n++
	}
	if n == 0 || n > maxName || n == len(rest) || rest[n] != ' ' && rest[n] != '*' {
		return "", false
	}
	return rest[:n], true
}

func isName(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c == '_' || c == '.' || c == '-'
}

// tally is what is counted of one tag.
type tally struct {
	name          string
	statements    atomic.Int64
	held, longest atomic.Int64 // nanoseconds
	observe       func(seconds float64)
	failed        func(class string)
}

// hold adds time, and length as that of a hold that may be the longest so far.
func (t *tally) hold(d, length time.Duration) {
	t.held.Add(int64(d))
	for {
		old := t.longest.Load()
		if int64(length) <= old || t.longest.CompareAndSwap(old, int64(length)) {
			return
		}
	}
}

// table finds tallies by name. Reading takes no lock: a new name is rare, and makes a new map.
type table struct {
	mu   sync.Mutex
	all  atomic.Pointer[map[string]*tally]
	make func(name string) *tally
}

func newTable(maker func(string) *tally, names ...string) *table {
	t := &table{make: maker}
	all := map[string]*tally{}
	for _, n := range names {
		all[n] = maker(n)
	}
	t.all.Store(&all)
	return t
}

func (t *table) find(name string) *tally {
	if found, ok := (*t.all.Load())[name]; ok {
		return found
	}
	return t.add(name)
}

func (t *table) add(name string) *tally {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := *t.all.Load()
	if found, ok := old[name]; ok {
		return found
	}
	if len(old) >= maxTags {
		return old[Other]
	}
	name = strings.Clone(name) // a statement may be long, and would be kept for its tag
	all := maps.Clone(old)
	all[name] = t.make(name)
	t.all.Store(&all)
	return all[name]
}

func (t *table) each(f func(*tally)) {
	for _, one := range *t.all.Load() {
		f(one)
	}
}
