package loadgen

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/twinhold/twinhold/reservation"
)

// maxJSONLine bounds one line; a request of 1,000 lines has about 70,000 bytes.
const maxJSONLine = 1 << 20

// jsonRequest is a line as the data API spells it, with an op beside it:
//
//	{"shopId":"1","idempotencyKey":"k","lines":[{"itemId":"1001","groupId":"1","quantity":2}],"ttl":"600s"}
//	{"op":"claim","shopId":"1","idempotencyKey":"k"}
//	{"op":"release","shopId":"1","idempotencyKey":"k"}
//	{"op":"adjust","shopId":"1","itemId":"1001","groupId":"1","delta":-5,"adjustmentId":"a"}
//
// A line without op is a reserve. A claim or release names the key of a reserve above it. A reserve with a key
// that was there before is its retry, and must ask for the same. If no line names a claim or release, the carts
// end by the same shares as those of a CSV; if one does, the file says it all. Without shopId the plan's shop
// counts. As in protobuf's JSON, whole numbers may be in quotes.
type jsonRequest struct {
	Op             string     `json:"op"`
	ShopID         wholeJSON  `json:"shopId"`
	IdempotencyKey string     `json:"idempotencyKey"`
	Lines          []jsonLine `json:"lines"`
	TTL            string     `json:"ttl"`
	ItemID         wholeJSON  `json:"itemId"`
	GroupID        wholeJSON  `json:"groupId"`
	Delta          wholeJSON  `json:"delta"`
	AdjustmentID   string     `json:"adjustmentId"`
}

type jsonLine struct {
	ItemID   wholeJSON `json:"itemId"`
	GroupID  wholeJSON `json:"groupId"`
	Quantity wholeJSON `json:"quantity"`
}

// wholeJSON is a whole number, in quotes or not.
type wholeJSON int64

// UnmarshalJSON refuses fractions, exponents and null.
func (w *wholeJSON) UnmarshalJSON(b []byte) error {
	s := string(b)
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		s = s[1 : len(s)-1]
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return fmt.Errorf("%s is not a whole number", b)
	}
	*w = wholeJSON(n)
	return nil
}

func readJSONL(name string, r io.Reader) (Recording, error) {
	rec := Recording{Name: name, NotGoods: make(map[string]int)}
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 64<<10), maxJSONLine)
	line := 0
	for sc.Scan() {
		line++
		text := bytes.TrimSpace(sc.Bytes())
		if len(text) == 0 {
			continue
		}
		req, err := parseRequest(text)
		if err != nil {
			return Recording{}, &ParseError{File: name, Line: line, Reason: err.Error()}
		}
		req.Line = line
		rec.Rows++
		rec.Requests = append(rec.Requests, req)
	}
	switch err := sc.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return Recording{}, &ParseError{File: name, Line: line + 1, Reason: fmt.Sprintf("the line has more than %d bytes", maxJSONLine)}
	case err != nil:
		return Recording{}, fmt.Errorf("%s: %w", name, err)
	}
	return rec, nil
}

func parseRequest(text []byte) (Request, error) {
	var j jsonRequest
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&j); err != nil {
		return Request{}, fmt.Errorf("this is not a request: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Request{}, errors.New("there is something behind the request: one JSON object a line")
	}
	if j.ShopID < 0 {
		return Request{}, errors.New("shopId is negative: use a positive whole number")
	}
	req := Request{Shop: int64(j.ShopID), Key: j.IdempotencyKey, Given: j.Op != ""}
	switch j.Op {
	case "", "reserve":
		return j.reserve(req)
	case "claim":
		req.Op = reservation.OpClaim
		return req, j.onlyKey()
	case "release":
		req.Op = reservation.OpRelease
		return req, j.onlyKey()
	case "adjust":
		return j.adjust(req)
	default:
		return Request{}, fmt.Errorf("op %q is unknown: use reserve, claim, release or adjust", j.Op)
	}
}

func (j *jsonRequest) reserve(req Request) (Request, error) {
	if j.ItemID != 0 || j.GroupID != 0 || j.Delta != 0 || j.AdjustmentID != "" {
		return Request{}, errors.New("itemId, groupId, delta and adjustmentId belong to an adjust: give a reserve lines")
	}
	req.Op = reservation.OpReserve
	for _, l := range j.Lines {
		req.Lines = append(req.Lines, reservation.Line{Item: int64(l.ItemID), Group: int64(l.GroupID), Quantity: int64(l.Quantity)})
	}
	ttl, err := parseTTL(j.TTL)
	if err != nil {
		return Request{}, err
	}
	req.TTL = ttl
	// The shop may still come from the plan; everything else is checked here, where the line is known.
	if _, err := reservation.NewRequest(max(req.Shop, 1), req.Key, req.Lines, max(ttl, time.Nanosecond), reservation.Limits{}); err != nil {
		return Request{}, err
	}
	return req, nil
}

func (j *jsonRequest) onlyKey() error {
	switch {
	case j.IdempotencyKey == "":
		return fmt.Errorf("a %s needs the idempotencyKey of the reserve that it is for", j.Op)
	case len(j.Lines) > 0 || j.TTL != "" || j.ItemID != 0 || j.GroupID != 0 || j.Delta != 0 || j.AdjustmentID != "":
		return fmt.Errorf("a %s takes shopId and idempotencyKey only", j.Op)
	default:
		return nil
	}
}

func (j *jsonRequest) adjust(req Request) (Request, error) {
	if len(j.Lines) > 0 || j.TTL != "" || j.IdempotencyKey != "" {
		return Request{}, errors.New("an adjust takes shopId, itemId, groupId, delta and adjustmentId only")
	}
	req.Op = reservation.OpAdjust
	req.Adjust = reservation.Adjustment{
		ID:     j.AdjustmentID,
		Bucket: reservation.Bucket{Shop: req.Shop, Item: int64(j.ItemID), Group: int64(j.GroupID)},
		Delta:  int64(j.Delta),
	}
	probe := req.Adjust
	probe.Bucket.Shop = max(req.Shop, 1)
	return req, probe.Validate()
}

// parseTTL reads a duration as protobuf's JSON writes it: seconds with an s behind them.
func parseTTL(s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	number, ok := strings.CutSuffix(s, "s")
	if ok && number != "" && strings.Trim(number, "0123456789.") == "" {
		if d, err := time.ParseDuration(s); err == nil && d > 0 {
			return d, nil
		}
	}
	return 0, fmt.Errorf(`ttl %q is not a duration: write seconds, as in "600s"`, s)
}
