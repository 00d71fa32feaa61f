package bench

import "fmt"

// InexactError: a scheme's books and what its callers were told do not agree, so a unit was lost or doubled.
type InexactError struct {
	Scheme string
	What   string
}

func (e *InexactError) Error() string {
	return fmt.Sprintf("scheme %s is not exact: %s", e.Scheme, e.What)
}

// told is what the callers of a scheme were told in all rounds, and the holds that were laid for claims.
type told struct{ granted, rejected, claimed, released, laid int64 }

func (t *told) add(m measured) {
	for _, l := range m.loads {
		t.granted += l.Granted
		t.rejected += l.Rejected
		t.claimed += l.Claimed
		t.released += l.Released
	}
}

// check compares. Every call is for one unit, or has given back what it took.
func (b books) check(scheme string, t told) error {
	fail := func(format string, args ...any) error {
		return &InexactError{Scheme: scheme, What: fmt.Sprintf(format, args...)}
	}
	gone, taken := b.stock-b.left, t.granted-t.released+t.laid
	switch {
	case b.broken != "":
		return fail("%s", b.broken)
	case gone != taken:
		return fail("callers were granted %d units that they did not give back, and %d have left the stock", taken, gone)
	case b.held+b.claimed != gone:
		return fail("%d units have left the stock, and %d are held or claimed", gone, b.held+b.claimed)
	case b.claimed != t.claimed:
		return fail("callers were told %d claims, and %d units were deducted", t.claimed, b.claimed)
	case b.released != t.released:
		return fail("callers were told %d releases, and %d are stored", t.released, b.released)
	case b.granted >= 0 && b.granted != t.granted+t.laid:
		return fail("callers were told %d grants, and %d are stored", t.granted+t.laid, b.granted)
	case b.rejected >= 0 && b.rejected != t.rejected:
		return fail("callers were told %d rejections, and %d are stored", t.rejected, b.rejected)
	}
	return nil
}
