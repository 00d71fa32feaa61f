package legacyredis

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/twinhold/twinhold/reservation"
)

// pinsPage is how many members are read at a time.
const pinsPage = 500

// Pins counts the claims and adjustments that are under way: pinned, and not finished yet. It walks the whole index of
// what needs attention, so it is for moments of rest.
func (s *Store) Pins(ctx context.Context) (int, error) {
	pins := 0
	same, err := s.oneServer(ctx)
	if err != nil {
		return 0, err
	}
	var cursor uint64
	for {
		var members []string
		var next uint64
		err := s.ask(ctx, "pins", func(ctx context.Context) error {
			page, to, err := s.client.ZScan(ctx, s.keys.exp(), cursor, "", pinsPage).Result()
			if err != nil {
				return s.wrongType(err, s.keys.exp())
			}
			members, next = page, to
			return nil
		})
		if err == nil {
			err = same(ctx, next == 0)
		}
		if err != nil {
			return pins, err
		}
		n, err := s.countPins(ctx, members)
		if err != nil {
			return pins, err
		}
		pins += n
		if next == 0 {
			return pins, nil
		}
		cursor = next
	}
}

// countPins counts the pins of one page: members, each followed by its score.
func (s *Store) countPins(ctx context.Context, members []string) (int, error) {
	n := 0
	err := s.ask(ctx, "pins", func(ctx context.Context) error {
		n = 0
		pipe := s.client.Pipeline()
		var states []*redis.StringCmd
		for i := 0; i < len(members); i += 2 {
			if strings.HasPrefix(members[i], adjMember) {
				n++
				continue
			}
			states = append(states, pipe.HGet(ctx, s.keys.reservation(members[i]), "state"))
		}
		if len(states) == 0 {
			return nil
		}
		_, _ = pipe.Exec(ctx) // each command has its own error; a record that cannot be read is no pin
		for _, c := range states {
			if c.Val() == reservation.Claiming.String() {
				n++
			}
		}
		return nil
	})
	return n, err
}
