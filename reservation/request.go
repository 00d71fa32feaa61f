package reservation

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
)

// Bounds of what a caller may send. They hold in every store.
const (
	// MaxQuantity is the largest quantity of one line, and of one bucket of a request once its lines are summed.
	MaxQuantity = math.MaxInt32
	// MaxLines is the largest number of lines of a request.
	MaxLines = 1000
	// MaxKeyBytes is the longest idempotency key or adjustment id, in bytes.
	MaxKeyBytes = 255
	// MaxOnHand bounds a bucket's stock. It keeps every figure exact in a Lua number (2^53).
	MaxOnHand = 1 << 50
)

// ID names a reservation: a UUIDv7, made by the router, so that ids sort by creation.
type ID = uuid.UUID

// NewID makes a time-ordered id.
func NewID() (ID, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return ID{}, fmt.Errorf("make a reservation id: %w", err)
	}
	return id, nil
}

// ParseID reads an id in its text form.
func ParseID(s string) (ID, error) {
	if len(s) != 36 {
		return ID{}, invalid("reservationId", "%q is not a reservation id: use the 36-character id that Reserve returned", s)
	}
	id, err := uuid.Parse(s)
	if err != nil {
		return ID{}, invalid("reservationId", "%q is not a reservation id: use the 36-character id that Reserve returned", s)
	}
	return id, nil
}

// Bucket is the unit of stock keeping.
type Bucket struct {
	Shop, Item, Group int64
}

// String gives shop:item:group, as key names and commands write it.
func (b Bucket) String() string { return fmt.Sprintf("%d:%d:%d", b.Shop, b.Item, b.Group) }

// Validate refuses ids that are not positive.
func (b Bucket) Validate() error {
	switch {
	case b.Shop <= 0:
		return invalid("shopId", "%d is not a shop id: use a positive whole number", b.Shop)
	case b.Item <= 0:
		return invalid("itemId", "%d is not an item id: use a positive whole number", b.Item)
	case b.Group <= 0:
		return invalid("groupId", "%d is not a group id: use a positive whole number", b.Group)
	default:
		return nil
	}
}

// Compare orders buckets as the primary keys do: shop, then item, then group.
func (b Bucket) Compare(o Bucket) int {
	return cmp.Or(cmp.Compare(b.Shop, o.Shop), cmp.Compare(b.Item, o.Item), cmp.Compare(b.Group, o.Group))
}

// Line is a bucket's item and group with a positive quantity.
type Line struct {
	Item, Group, Quantity int64
}

// Bucket gives the line's bucket in a shop.
func (l Line) Bucket(shop int64) Bucket { return Bucket{Shop: shop, Item: l.Item, Group: l.Group} }

// Hash is the fingerprint of a request, stored with its key.
type Hash [sha256.Size]byte

// Limits are a pod's bounds on the time to live of a reservation.
type Limits struct {
	// DefaultTTL stands in for a TTL that the caller left out.
	DefaultTTL time.Duration
	// MaxTTL is the longest TTL that a caller may ask for.
	MaxTTL time.Duration
	// MinTTL is payment timeout + callback window + clock skew; a TTL at or below it is refused.
	MinTTL time.Duration
}

// Request is a validated, normalised reserve: lines of one bucket summed, sorted by item, then group.
type Request struct {
	Shop  int64
	Key   string
	Lines []Line
	TTL   time.Duration
	Hash  Hash
	// Frozen: a brake is set that the store which is asked does not carry: a new reservation is ErrFrozen there too.
	Frozen bool
}

// NewRequest validates and normalises what a caller sent. Its errors are *InvalidError.
func NewRequest(shop int64, key string, lines []Line, ttl time.Duration, lim Limits) (Request, error) {
	if shop <= 0 {
		return Request{}, invalid("shopId", "%d is not a shop id: use a positive whole number", shop)
	}
	if err := validateKey("idempotencyKey", key); err != nil {
		return Request{}, err
	}
	norm, err := normalise(shop, lines)
	if err != nil {
		return Request{}, err
	}
	asked := ttl
	if ttl == 0 {
		ttl = lim.DefaultTTL
	}
	if ttl <= lim.MinTTL {
		return Request{}, invalid("ttl", "%v is too short: use more than %v (payment timeout + callback window + clock skew)", ttl, lim.MinTTL)
	}
	if lim.MaxTTL > 0 && ttl > lim.MaxTTL {
		return Request{}, invalid("ttl", "%v is too long: use %v at most (max_ttl)", ttl, lim.MaxTTL)
	}
	ttl = ttl.Truncate(time.Microsecond)
	return Request{Shop: shop, Key: key, Lines: norm, TTL: ttl, Hash: hashRequest(shop, norm, asked)}, nil
}

// Units is the number of pieces over all lines.
func Units(lines []Line) int64 {
	var n int64
	for _, l := range lines {
		n += l.Quantity
	}
	return n
}

func validateKey(field, key string) error {
	switch {
	case key == "":
		return invalid(field, "is empty: send 1 to %d bytes", MaxKeyBytes)
	case len(key) > MaxKeyBytes:
		return invalid(field, "has %d bytes: send 1 to %d", len(key), MaxKeyBytes)
	default:
		return nil
	}
}

func normalise(shop int64, lines []Line) ([]Line, error) {
	if len(lines) == 0 {
		return nil, invalid("lines", "is empty: send 1 to %d lines", MaxLines)
	}
	if len(lines) > MaxLines {
		return nil, invalid("lines", "has %d lines: send 1 to %d", len(lines), MaxLines)
	}
	norm := slices.Clone(lines)
	for i, l := range norm {
		if err := l.Bucket(shop).Validate(); err != nil {
			return nil, atLine(i, err)
		}
		if l.Quantity < 1 || l.Quantity > MaxQuantity {
			return nil, atLine(i, invalid("quantity", "%d is out of range: use 1 to %d", l.Quantity, MaxQuantity))
		}
	}
	slices.SortFunc(norm, func(a, b Line) int { return a.Bucket(shop).Compare(b.Bucket(shop)) })
	out := norm[:1]
	for _, l := range norm[1:] {
		last := &out[len(out)-1]
		if last.Item != l.Item || last.Group != l.Group {
			out = append(out, l)
			continue
		}
		last.Quantity += l.Quantity
		if last.Quantity > MaxQuantity {
			return nil, invalid("lines", "item %d of group %d sums to %d: use %d at most", l.Item, l.Group, last.Quantity, MaxQuantity)
		}
	}
	return slices.Clip(out), nil
}

// hashRequest takes the TTL as the caller sent it (0 if left out), so that a new default does not turn a retry
// into another request.
func hashRequest(shop int64, lines []Line, ttl time.Duration) Hash {
	buf := make([]byte, 0, 24+24*len(lines))
	buf = append(buf, "twinhold request 1\x00"...)
	buf = binary.BigEndian.AppendUint64(buf, uint64(shop))
	buf = binary.BigEndian.AppendUint64(buf, uint64(ttl))
	for _, l := range lines {
		buf = binary.BigEndian.AppendUint64(buf, uint64(l.Item))
		buf = binary.BigEndian.AppendUint64(buf, uint64(l.Group))
		buf = binary.BigEndian.AppendUint64(buf, uint64(l.Quantity))
	}
	return sha256.Sum256(buf)
}

// Adjustment is stock received, counted or written off: a signed change of one bucket, idempotent by its id.
// The id is the caller's, 1 to 255 bytes, and names one adjustment in the whole shop.
type Adjustment struct {
	ID     string
	Bucket Bucket
	Delta  int64
	// Force lets a negative delta go below what is promised. It is counted and alerted.
	Force bool
}

// Validate refuses what no store could carry out. Its errors are *InvalidError.
func (a Adjustment) Validate() error {
	if err := a.Bucket.Validate(); err != nil {
		return err
	}
	if err := validateKey("adjustmentId", a.ID); err != nil {
		return err
	}
	if a.Delta == 0 || a.Delta > MaxOnHand || a.Delta < -MaxOnHand {
		return invalid("delta", "%d is out of range: use -%d to %d, not 0", a.Delta, int64(MaxOnHand), int64(MaxOnHand))
	}
	return nil
}

// Stocking is the first stock of a bucket.
type Stocking struct {
	Bucket   Bucket
	Quantity int64
}

// Validate refuses what no store could carry out. Its errors are *InvalidError.
func (s Stocking) Validate() error {
	if err := s.Bucket.Validate(); err != nil {
		return err
	}
	if s.Quantity < 0 || s.Quantity > MaxOnHand {
		return invalid("quantity", "%d is out of range: use 0 to %d", s.Quantity, int64(MaxOnHand))
	}
	return nil
}
