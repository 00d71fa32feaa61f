package shadow

import (
	"encoding/binary"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// Before gives an id below every one that was made at a time or later: ids are UUIDv7.
func Before(at time.Time) (id reservation.ID) {
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(max(at.UnixMilli(), 0)))
	copy(id[:6], ms[2:])
	return id
}

// Created is the time in an id: when its router made it.
func Created(id reservation.ID) time.Time {
	var ms [8]byte
	copy(ms[2:], id[:6])
	return time.UnixMilli(int64(binary.BigEndian.Uint64(ms[:])))
}
