package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// The answers have the JSON of the data API: 64-bit numbers as strings, times in RFC 3339.

type reserveReply struct {
	ReservationID string     `json:"reservationId"`
	Outcome       string     `json:"outcome"`
	State         string     `json:"state"`
	ExpiresAt     string     `json:"expiresAt"`
	DecidedBy     string     `json:"decidedBy"`
	Epoch         string     `json:"epoch"`
	Replayed      bool       `json:"replayed"`
	Shortages     []shortage `json:"shortages,omitempty"`
}

type shortage struct {
	ItemID    string `json:"itemId"`
	GroupID   string `json:"groupId"`
	Requested int64  `json:"requested"`
	Available int64  `json:"available"`
}

type claimAnswer struct {
	State string `json:"state"`
	Late  bool   `json:"late"`
}

type releaseAnswer struct {
	ReservationID string `json:"reservationId"`
	State         string `json:"state"`
	Replayed      bool   `json:"replayed"`
}

type recordAnswer struct {
	ReservationID string            `json:"reservationId"`
	State         string            `json:"state"`
	ExpiresAt     string            `json:"expiresAt"`
	DecidedBy     string            `json:"decidedBy"`
	Epoch         string            `json:"epoch"`
	Lines         []lineAnswer      `json:"lines"`
	History       map[string]string `json:"history"`
}

type lineAnswer struct {
	ItemID   string `json:"itemId"`
	GroupID  string `json:"groupId"`
	Quantity int64  `json:"quantity"`
}

type availabilityAnswer struct {
	Available string `json:"available"`
	Held      string `json:"held"`
	OnHand    string `json:"onHand"`
	Truth     string `json:"truth"`
}

// bothAnswer is what both stores say.
type bothAnswer[T any] struct {
	Redis      T      `json:"redis"`
	RedisError string `json:"redisError,omitempty"`
	MySQL      T      `json:"mysql"`
	MySQLError string `json:"mysqlError,omitempty"`
}

// stateRefund is the state of a reservation whose claim was refused, as the data API says it.
const stateRefund = "REFUND_REQUIRED"

// stateWord gives a state as the data API does.
func stateWord(s reservation.State) string {
	if s == reservation.Refused {
		return stateRefund
	}
	return upper(s)
}

func upper(s fmt.Stringer) string { return strings.ToUpper(s.String()) }

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

func instant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000000Z")
}

func reserveAnswer(res reservation.Result) reserveReply {
	rec := res.Record
	ans := reserveReply{
		ReservationID: rec.ID.String(), Outcome: upper(rec.Outcome), State: stateWord(rec.State), ExpiresAt: instant(rec.ExpiresAt),
		DecidedBy: rec.DecidedBy.String(), Epoch: strconv.FormatUint(rec.Epoch, 10), Replayed: res.Replayed,
	}
	for _, s := range rec.Shortages {
		ans.Shortages = append(ans.Shortages, shortage{decimal(s.Item), decimal(s.Group), s.Requested, s.Available})
	}
	return ans
}

func claimAnswerOf(res reservation.ClaimResult) claimAnswer {
	return claimAnswer{State: stateWord(res.Record.State), Late: res.Late}
}

func recordAnswerOf(rec reservation.Record) recordAnswer {
	ans := recordAnswer{
		ReservationID: rec.ID.String(), State: stateWord(rec.State), ExpiresAt: instant(rec.ExpiresAt),
		DecidedBy: rec.DecidedBy.String(), Epoch: strconv.FormatUint(rec.Epoch, 10), Lines: []lineAnswer{}, History: map[string]string{},
	}
	for _, l := range rec.Lines {
		ans.Lines = append(ans.Lines, lineAnswer{decimal(l.Item), decimal(l.Group), l.Quantity})
	}
	for step, at := range map[string]time.Time{
		"created": rec.CreatedAt, "pinned": rec.PinnedAt, "released": rec.ReleasedAt, "expired": rec.ExpiredAt, ended(rec): rec.ClaimedAt,
	} {
		if !at.IsZero() {
			ans.History[step] = instant(at)
		}
	}
	return ans
}

// availabilityAnswerOf shows figures of a pod whose source of truth is truth.
func availabilityAnswerOf(av reservation.Availability, truth reservation.Truth) availabilityAnswer {
	return availabilityAnswer{decimal(av.Available), decimal(av.Held), decimal(av.OnHand), truth.String()}
}

// stepRefund is the step of a history in which a claim was refused.
const stepRefund = "refund_required"

// ended names what ClaimedAt is the time of.
func ended(rec reservation.Record) string {
	if rec.State == reservation.Refused {
		return stepRefund
	}
	return "claimed"
}

// texter writes itself for people.
type texter interface{ text(w io.Writer) error }

// show prints a result in the asked format.
func (a *app) show(v texter) error {
	if a.format == formatJSON {
		return a.printJSON(v)
	}
	return v.text(a.out)
}

func writef(w io.Writer, format string, args ...any) error {
	if _, err := fmt.Fprintf(w, format, args...); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}

func (r reserveReply) text(w io.Writer) error {
	again := ""
	if r.Replayed {
		again = ", as it was before; now it is " + strings.ToLower(r.State)
	}
	if err := writef(w, "%s %s%s\n", r.ReservationID, strings.ToLower(r.Outcome), again); err != nil {
		return err
	}
	for _, s := range r.Shortages {
		if err := writef(w, "  item %s, group %s: wanted %d, available %d\n", s.ItemID, s.GroupID, s.Requested, s.Available); err != nil {
			return err
		}
	}
	return writef(w, "  state %s, %sdecided by %s in epoch %s\n", strings.ToLower(r.State), expires(r.State, r.ExpiresAt), r.DecidedBy, r.Epoch)
}

// expires says when a reservation's time is over. A rejection has none.
func expires(state, at string) string {
	if at == "" || state == upper(reservation.Rejected) {
		return ""
	}
	return "expires " + at + ", "
}

func (c claimAnswer) text(w io.Writer) error {
	late := ""
	if c.Late {
		late = " (late: past its expiry)"
	}
	return writef(w, "%s%s\n", strings.ToLower(c.State), late)
}

func (r releaseAnswer) text(w io.Writer) error {
	again := ""
	if r.Replayed {
		again = " (before)"
	}
	return writef(w, "%s %s%s\n", r.ReservationID, strings.ToLower(r.State), again)
}

func (r recordAnswer) text(w io.Writer) error {
	if err := writef(w, "%s %s\n  %sdecided by %s in epoch %s\n", r.ReservationID, strings.ToLower(r.State), expires(r.State, r.ExpiresAt), r.DecidedBy, r.Epoch); err != nil {
		return err
	}
	for _, l := range r.Lines {
		if err := writef(w, "  item %s, group %s: %d\n", l.ItemID, l.GroupID, l.Quantity); err != nil {
			return err
		}
	}
	for _, step := range []string{"created", "pinned", "released", "expired", "claimed", stepRefund} {
		if at := r.History[step]; at != "" {
			if err := writef(w, "  %-8s %s\n", step, at); err != nil {
				return err
			}
		}
	}
	return nil
}

func (v availabilityAnswer) text(w io.Writer) error {
	return writef(w, "available %s, held %s, on hand %s (the truth is %s)\n", v.Available, v.Held, v.OnHand, v.Truth)
}

func (b bothAnswer[T]) text(w io.Writer) error {
	for _, side := range []struct {
		name  string
		value any
		err   string
	}{{"redis", b.Redis, b.RedisError}, {"mysql", b.MySQL, b.MySQLError}} {
		if err := writef(w, "%s: ", side.name); err != nil {
			return err
		}
		t, ok := side.value.(texter)
		if side.err != "" || !ok { // nil is a texter too: the error comes first
			if err := writef(w, "%s\n", side.err); err != nil {
				return err
			}
			continue
		}
		if err := t.text(w); err != nil {
			return err
		}
	}
	return nil
}
