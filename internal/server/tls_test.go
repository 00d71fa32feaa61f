package server_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	twinholdv1 "github.com/twinhold/twinhold/api/twinhold/v1"
	"github.com/twinhold/twinhold/api/twinhold/v1/twinholdv1connect"
	"github.com/twinhold/twinhold/config"
	"github.com/twinhold/twinhold/internal/server"
	"github.com/twinhold/twinhold/reservation"
)

// selfMade writes a certificate for 127.0.0.1 and its key, and gives the pool that trusts it.
func selfMade(t *testing.T, into config.TLS) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "twinhold test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{into.CertFile: {Type: "CERTIFICATE", Bytes: der}, into.KeyFile: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool := x509.NewCertPool()
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool.AddCert(cert)
	return pool
}

func filesIn(dir, name string) config.TLS {
	return config.TLS{CertFile: filepath.Join(dir, name+"-cert.pem"), KeyFile: filepath.Join(dir, name+"-key.pem")}
}

// trusting is a client of its own connections, over HTTP/2 or HTTP/1.1.
func trusting(t *testing.T, pool *x509.CertPool, two bool) *http.Client {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!two)
	protocols.SetHTTP2(two)
	c := &http.Client{Transport: &http.Transport{Protocols: protocols, TLSClientConfig: &tls.Config{RootCAs: pool}}, Timeout: 10 * time.Second}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

func claimed(context.Context) (reservation.ClaimResult, error) {
	return reservation.ClaimResult{Record: reservation.Record{State: reservation.Claimed}}, nil
}

// Every protocol of the data API, over TLS; cleartext is refused there.
func TestDataAPIOverTLS(t *testing.T) {
	files := filesIn(t.TempDir(), "data")
	pool := selfMade(t, files)
	s := start(t, server.Options{Router: scripted{claim: claimed}, DataTLS: files})
	url := "https://" + s.srv.DataAddr()
	claim := &twinholdv1.ClaimRequest{ShopId: 1, ReservationId: "0198f2a0-7c1e-7abc-8def-0123456789ab"}
	for name, c := range map[string]twinholdv1connect.ReservationServiceClient{
		"gRPC":          twinholdv1connect.NewReservationServiceClient(trusting(t, pool, true), url, connect.WithGRPC()),
		"gRPC-Web":      twinholdv1connect.NewReservationServiceClient(trusting(t, pool, false), url, connect.WithGRPCWeb()),
		"Connect":       twinholdv1connect.NewReservationServiceClient(trusting(t, pool, true), url),
		"Connect, JSON": twinholdv1connect.NewReservationServiceClient(trusting(t, pool, false), url, connect.WithProtoJSON()),
	} {
		res, err := c.Claim(t.Context(), connect.NewRequest(claim))
		if err != nil || res.Msg.GetState() != twinholdv1.State_CLAIMED {
			t.Errorf("%s over TLS: %v, %v", name, res, err)
		}
	}
	plain := twinholdv1connect.NewReservationServiceClient(s.http, "http://"+s.srv.DataAddr())
	if _, err := plain.Claim(t.Context(), connect.NewRequest(claim)); err == nil {
		t.Error("cleartext was answered on a TLS port")
	}
	old := &tls.Config{RootCAs: pool, MaxVersion: tls.VersionTLS11} //nolint:gosec // that it is refused is the point
	if conn, err := tls.Dial("tcp", s.srv.DataAddr(), old); err == nil {
		conn.Close()
		t.Error("TLS 1.1 was accepted")
	}
	if code, _ := s.admin("/healthz", ""); code != 200 {
		t.Errorf("the admin listener is cleartext, and answered %d", code)
	}
}

func TestAdminOverTLS(t *testing.T) {
	dir := t.TempDir()
	files := filesIn(dir, "admin")
	pool := selfMade(t, files)
	tokens, err := server.ParseTokens([]byte(threeRoles))
	if err != nil {
		t.Fatal(err)
	}
	b := &brakes{}
	s := start(t, server.Options{Router: scripted{claim: claimed}, AdminTLS: files, Tokens: tokens, Pods: []server.Pod{b.of("pod-1")}})
	kill := func(pool *x509.CertPool) error {
		c := twinholdv1connect.NewAdminServiceClient(trusting(t, pool, true), "https://"+s.srv.AdminAddr(), connect.WithGRPC())
		req := connect.NewRequest(&twinholdv1.KillRequest{Pod: "pod-1", Reason: "why"})
		req.Header().Set("Authorization", "Bearer 0123456789abcdef-o")
		_, err := c.Kill(t.Context(), req)
		return err
	}
	if err := kill(pool); err != nil || b.said() != "anna pod-1 kill why " {
		t.Errorf("a kill over TLS: %v", err)
	}

	// A renewed certificate is taken by new connections; a broken one changes nothing.
	renewed := selfMade(t, files)
	if err := s.srv.RenewTLS(config.TLS{}, files); err != nil {
		t.Fatal(err)
	}
	if err := kill(renewed); err != nil {
		t.Errorf("with the renewed certificate: %v", err)
	}
	if err := kill(pool); err == nil {
		t.Error("the old certificate is still in use")
	}
	if err := os.WriteFile(files.KeyFile, []byte("hunter2"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.srv.RenewTLS(config.TLS{}, files); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a broken key: %v", err)
	}
	if err := kill(renewed); err != nil {
		t.Errorf("after a renewal that failed: %v", err)
	}
}

func TestFilesThatAreNoPairAreRefused(t *testing.T) {
	dir := t.TempDir()
	one, two := filesIn(dir, "one"), filesIn(dir, "two")
	selfMade(t, one)
	selfMade(t, two)
	for name, c := range map[string]struct {
		tls  config.TLS
		want string
	}{
		"another's key": {config.TLS{CertFile: one.CertFile, KeyFile: two.KeyFile}, "does not match"},
		"no file":       {config.TLS{CertFile: one.CertFile, KeyFile: filepath.Join(dir, "none")}, "is not there"},
		"a folder":      {config.TLS{CertFile: dir, KeyFile: one.KeyFile}, "not a regular file"},
	} {
		for of, opt := range map[string]server.Options{"data": {DataTLS: c.tls}, "admin": {AdminTLS: c.tls}} {
			opt.Router, opt.AdminListen = scripted{}, "127.0.0.1:0"
			_, err := server.New(opt)
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "the "+of+" listener") {
				t.Errorf("%s for %s: %v, want %q", name, of, err, c.want)
			}
		}
	}
}

// get asks for a page.
func (s *served) get(t *testing.T, url string) (int, string) {
	t.Helper()
	res, err := s.http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, strings.TrimSpace(string(text))
}
