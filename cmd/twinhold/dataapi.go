package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	twinholdv1 "github.com/twinhold/twinhold/api/twinhold/v1"
	"github.com/twinhold/twinhold/api/twinhold/v1/twinholdv1connect"
	"github.com/twinhold/twinhold/config"
	"github.com/twinhold/twinhold/internal/server"
	"github.com/twinhold/twinhold/reservation"
)

// Bounds of finding out whether a router runs.
const (
	dialTimeout = 300 * time.Millisecond
	findTimeout = time.Second
	maxIdentity = 64 << 10
)

// dataAPI is a running router, asked over its data API as anybody would.
type dataAPI struct {
	client twinholdv1connect.ReservationServiceClient
	http   *http.Client
	limits reservation.Limits // as this configuration has them; the router's may be newer
}

var _ server.Router = (*dataAPI)(nil)

// findRouter gives the router that serves the pod of this very configuration, or nil. That something else listens
// there is worth a word: a person may think that it is the router.
func (a *app) findRouter(ctx context.Context, cfg *config.Config, pod *config.Pod) *dataAPI {
	addr, ok := dialable(cfg.Data.Listen)
	if !ok {
		return nil
	}
	dialer := &net.Dialer{Timeout: dialTimeout}
	transport := &http.Transport{DialContext: dialer.DialContext, TLSHandshakeTimeout: findTimeout, ForceAttemptHTTP2: true}
	scheme := "http"
	if cfg.Data.TLS.On() {
		scheme = "https"
		trust, err := trusting(cfg.Data.TLS)
		if err != nil {
			a.warn("the router is not asked, but the stores: %v", err)
			return nil
		}
		transport.TLSClientConfig = trust
	}
	// The bound is not the call's own deadline, which would go to the router: the router's is shorter, so that its words
	// arrive before nobody waits for them.
	d := &dataAPI{http: &http.Client{Transport: transport, Timeout: callTimeout}, limits: cfg.Limits()}
	d.client = twinholdv1connect.NewReservationServiceClient(d.http, scheme+"://"+addr)
	if err := d.identify(ctx, scheme+"://"+addr, pod); err != nil {
		d.close()
		if dial := new(net.OpError); !errors.As(err, &dial) || dial.Op != "dial" {
			a.warn("what answers at data.listen %s is not asked, but the stores: %v", cfg.Data.Listen, err)
		}
		return nil
	}
	return d
}

// dialable is where this machine reaches a listener. One on any free port cannot be found.
func dialable(listen string) (string, bool) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil || port == "0" {
		return "", false
	}
	switch ip := net.ParseIP(host); {
	case host == "" || ip != nil && ip.IsUnspecified() && ip.To4() != nil:
		host = "127.0.0.1"
	case ip != nil && ip.IsUnspecified():
		host = "::1"
	}
	return net.JoinHostPort(host, port), true
}

// trusting trusts the configured certificate, under its own name, and no other.
func trusting(t config.TLS) (*tls.Config, error) {
	pair, err := t.Load()
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	for _, der := range pair.Certificate {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("the certificate %s: %w", t.CertFile, err)
		}
		roots.AddCert(cert)
	}
	name := ""
	switch leaf := pair.Leaf; {
	case len(leaf.DNSNames) > 0:
		name = leaf.DNSNames[0]
	case len(leaf.IPAddresses) > 0:
		name = leaf.IPAddresses[0].String()
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: name}, nil
}

// errOther: whatever listens there, it is not the router of this configuration.
var errOther = errors.New("it is not a router of this configuration")

func (d *dataAPI) identify(ctx context.Context, base string, pod *config.Pod) (err error) {
	ctx, cancel := context.WithTimeout(ctx, findTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/pods/"+pod.ID, http.NoBody)
	if err != nil {
		return err
	}
	res, err := d.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, res.Body.Close()) }()
	var id server.Identity
	if err := json.NewDecoder(io.LimitReader(res.Body, maxIdentity)).Decode(&id); err != nil || res.StatusCode != http.StatusOK {
		return errOther
	}
	if id != (server.Identity{Service: server.Service, Pod: pod.ID, Stores: pod.StoresID()}) {
		return errOther
	}
	return nil
}

func (d *dataAPI) close() { d.http.CloseIdleConnections() }

// Reserve places a hold. What a message could not carry is refused here, as a router would.
func (d *dataAPI) Reserve(ctx context.Context, shop int64, key string, lines []reservation.Line, ttl time.Duration) (reservation.Result, error) {
	lim := reservation.Limits{DefaultTTL: d.limits.DefaultTTL} // the rest is the router's to judge
	if ttl < 0 {
		lim = d.limits
	}
	if _, err := reservation.NewRequest(shop, key, lines, ttl, lim); err != nil {
		return reservation.Result{}, err
	}
	if !utf8.ValidString(key) {
		return reservation.Result{}, &reservation.InvalidError{Field: "idempotencyKey", Reason: "is not UTF-8"}
	}
	req := &twinholdv1.ReserveRequest{ShopId: shop, IdempotencyKey: key}
	for _, l := range lines {
		req.Lines = append(req.Lines, &twinholdv1.Line{ItemId: l.Item, GroupId: l.Group, Quantity: int32(l.Quantity)}) //nolint:gosec // just checked
	}
	if ttl != 0 {
		req.Ttl = durationpb.New(ttl)
	}
	res, err := d.client.Reserve(ctx, connect.NewRequest(req))
	if err != nil {
		return reservation.Result{}, apiErrorOf(err)
	}
	m := res.Msg
	out := reservation.Result{Replayed: m.GetReplayed(), Record: reservation.Record{
		Shop: shop, Key: key, ExpiresAt: timeOf(m.GetExpiresAt()), DecidedBy: truthOf(m.GetDecidedBy()), Epoch: m.GetEpoch(),
		State: stateFrom(m.GetState()),
	}}
	switch m.GetOutcome() {
	case twinholdv1.ReserveResponse_GRANTED:
		out.Record.Outcome = reservation.Granted
	case twinholdv1.ReserveResponse_REJECTED:
		out.Record.Outcome = reservation.RejectedShort
	default:
		return out, fmt.Errorf("the router answered with an outcome that this program does not know: %s", m.GetOutcome())
	}
	for _, s := range m.GetShortages() {
		out.Record.Shortages = append(out.Record.Shortages, reservation.Shortage{
			Item: s.GetItemId(), Group: s.GetGroupId(), Requested: int64(s.GetRequested()), Available: int64(s.GetAvailable()),
		})
	}
	out.Record.ID, err = reservation.ParseID(m.GetReservationId())
	return out, err
}

// Claim makes a hold's deduction permanent.
func (d *dataAPI) Claim(ctx context.Context, shop int64, id reservation.ID) (reservation.ClaimResult, error) {
	res, err := d.client.Claim(ctx, connect.NewRequest(&twinholdv1.ClaimRequest{ShopId: shop, ReservationId: id.String()}))
	if err != nil {
		return reservation.ClaimResult{}, apiErrorOf(err)
	}
	return reservation.ClaimResult{Record: reservation.Record{ID: id, State: stateFrom(res.Msg.GetState())}, Late: res.Msg.GetLate()}, nil
}

// Release gives a hold up.
func (d *dataAPI) Release(ctx context.Context, shop int64, id reservation.ID) (reservation.ReleaseResult, error) {
	res, err := d.client.Release(ctx, connect.NewRequest(&twinholdv1.ReleaseRequest{ShopId: shop, ReservationId: id.String()}))
	if err != nil {
		return reservation.ReleaseResult{}, apiErrorOf(err)
	}
	return reservation.ReleaseResult{Record: reservation.Record{ID: id, State: stateFrom(res.Msg.GetState())}, Replayed: res.Msg.GetReplayed()}, nil
}

// Adjust changes a bucket's stock.
func (d *dataAPI) Adjust(ctx context.Context, adj reservation.Adjustment) (reservation.AdjustResult, error) {
	if !utf8.ValidString(adj.ID) {
		return reservation.AdjustResult{}, &reservation.InvalidError{Field: "adjustmentId", Reason: "is not UTF-8"}
	}
	res, err := d.client.AdjustStock(ctx, connect.NewRequest(&twinholdv1.AdjustStockRequest{
		ShopId: adj.Bucket.Shop, ItemId: adj.Bucket.Item, GroupId: adj.Bucket.Group, Delta: adj.Delta, AdjustmentId: adj.ID, Force: adj.Force,
	}))
	if err != nil {
		return reservation.AdjustResult{}, apiErrorOf(err)
	}
	return reservation.AdjustResult{Figures: reservation.Figures{Bucket: adj.Bucket, OnHand: res.Msg.GetOnHand()}, Replayed: res.Msg.GetReplayed()}, nil
}

// Get reads a reservation, its history too.
func (d *dataAPI) Get(ctx context.Context, shop int64, id reservation.ID) (reservation.Record, error) {
	res, err := d.client.GetReservation(ctx, connect.NewRequest(&twinholdv1.GetReservationRequest{ShopId: shop, ReservationId: id.String(), WithHistory: true}))
	if err != nil {
		return reservation.Record{}, apiErrorOf(err)
	}
	m := res.Msg
	rec := reservation.Record{
		ID: id, Shop: shop, State: stateFrom(m.GetState()), ExpiresAt: timeOf(m.GetExpiresAt()), DecidedBy: truthOf(m.GetDecidedBy()), Epoch: m.GetEpoch(),
	}
	for _, l := range m.GetLines() {
		rec.Lines = append(rec.Lines, reservation.Line{Item: l.GetItemId(), Group: l.GetGroupId(), Quantity: int64(l.GetQuantity())})
	}
	steps := map[string]*time.Time{
		"created": &rec.CreatedAt, "pinned": &rec.PinnedAt, "released": &rec.ReleasedAt, "expired": &rec.ExpiredAt,
		"claimed": &rec.ClaimedAt, stepRefund: &rec.ClaimedAt,
	}
	for step, at := range m.GetHistory() {
		if into, ok := steps[step]; ok {
			*into = timeOf(at)
		}
	}
	return rec, nil
}

// Availability reads a bucket's figures.
func (d *dataAPI) Availability(ctx context.Context, b reservation.Bucket) (reservation.Availability, error) {
	res, err := d.client.GetAvailability(ctx, connect.NewRequest(&twinholdv1.GetAvailabilityRequest{ShopId: b.Shop, ItemId: b.Item, GroupId: b.Group}))
	if err != nil {
		return reservation.Availability{}, apiErrorOf(err)
	}
	m := res.Msg
	return reservation.Availability{
		Bucket: b, Available: m.GetAvailable(), Held: m.GetHeld(), OnHand: m.GetOnHand(), Truth: truthOf(m.GetTruth()),
	}, nil
}

func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func truthOf(name string) reservation.Truth {
	if name == reservation.MySQL.String() {
		return reservation.MySQL
	}
	return reservation.Redis
}

func stateFrom(s twinholdv1.State) reservation.State {
	for st, name := range map[reservation.State]twinholdv1.State{
		reservation.Provisional: twinholdv1.State_PROVISIONAL, reservation.Held: twinholdv1.State_HELD, reservation.Claiming: twinholdv1.State_CLAIMING,
		reservation.Rejected: twinholdv1.State_REJECTED, reservation.Expired: twinholdv1.State_EXPIRED, reservation.Refused: twinholdv1.State_REFUND_REQUIRED,
		reservation.Released: twinholdv1.State_RELEASED, reservation.Claimed: twinholdv1.State_CLAIMED,
	} {
		if name == s {
			return st
		}
	}
	return 0
}

// apiError is what a router answered instead of a result.
type apiError struct {
	code    reservation.Code
	reason  string // server.ReasonBucket or server.ReasonShort, where it is one of them
	message string
}

// Error gives the router's words.
func (e *apiError) Error() string { return e.message }

// Is makes it the condition that the router met.
func (e *apiError) Is(target error) bool {
	switch target {
	case reservation.ErrNotFound:
		return e.code == reservation.CodeNotFound && e.reason == ""
	case reservation.ErrKeyConflict:
		return e.code == reservation.CodeAlreadyExists
	default:
		return false
	}
}

// apiErrorOf reads an error of the data API. A call without an answer has no known outcome.
func apiErrorOf(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return &apiError{code: reservation.CodeUnavailable, message: fmt.Sprintf("the router gave no answer within %v: retry with the same key", callTimeout)}
	}
	ce := new(connect.Error)
	if !errors.As(err, &ce) {
		return &apiError{code: reservation.CodeUnavailable, message: "the router gave no answer: " + err.Error()}
	}
	if field := ce.Meta().Get(server.HeaderField); ce.Code() == connect.CodeInvalidArgument && field != "" {
		reason := ce.Message()
		if len(reason) > len(field) {
			reason = reason[len(field)+1:]
		}
		return &reservation.InvalidError{Field: field, Reason: reason}
	}
	e := &apiError{code: reservation.Code(ce.Code().String()), reason: ce.Meta().Get(server.HeaderReason), message: ce.Message()}
	switch e.code {
	case reservation.CodeInvalidArgument, reservation.CodeNotFound, reservation.CodeAlreadyExists, reservation.CodeFailedPrecondition, reservation.CodeInternal:
	default: // resource_exhausted, a deadline, a connection that broke
		e.code = reservation.CodeUnavailable
	}
	return e
}

// codeOf is reservation.CodeOf, for what a router answered too.
func codeOf(err error) reservation.Code {
	if e := new(apiError); errors.As(err, &e) {
		return e.code
	}
	return reservation.CodeOf(err)
}

// isUnknownBucket tells whether a bucket was never stocked, whoever says so.
func isUnknownBucket(err error) bool {
	var bucket *reservation.UnknownBucketError
	e := new(apiError)
	return errors.As(err, &bucket) || errors.As(err, &e) && e.reason == server.ReasonBucket
}

// isShort tells whether an adjustment would have gone below what is promised, whoever says so.
func isShort(err error) bool {
	var short *reservation.ShortError
	e := new(apiError)
	return errors.As(err, &short) || errors.As(err, &e) && e.reason == server.ReasonShort
}
