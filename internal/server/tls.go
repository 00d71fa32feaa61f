package server

import (
	"crypto/tls"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/twinhold/twinhold/config"
)

// certificate is a listener's, and can be renewed while it serves. None: the listener is cleartext.
type certificate struct {
	now atomic.Pointer[tls.Certificate]
}

func loadCertificate(of string, t config.TLS) (*tls.Certificate, error) {
	if !t.On() {
		return nil, nil
	}
	pair, err := t.Load()
	if err != nil {
		return nil, fmt.Errorf("TLS of %s: %w", of, err)
	}
	return &pair, nil
}

// config gives what the listener speaks, nil for cleartext.
func (c *certificate) config() *tls.Config {
	if c.now.Load() == nil {
		return nil
	}
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.now.Load(), nil },
	}
}

func (s *Server) loadTLS() error {
	data, dataErr := loadCertificate("the data listener", s.opt.DataTLS)
	admin, adminErr := loadCertificate("the admin listener", s.opt.AdminTLS)
	s.dataCert.now.Store(data)
	s.adminCert.now.Store(admin)
	return errors.Join(dataErr, adminErr)
}

// RenewTLS reads the certificates of both listeners anew. New connections use them; if one of them cannot be used,
// nothing changes. A listener neither begins nor ceases to speak TLS.
func (s *Server) RenewTLS(data, admin config.TLS) error {
	d, dataErr := loadCertificate("the data listener", data)
	a, adminErr := loadCertificate("the admin listener", admin)
	if err := errors.Join(dataErr, adminErr); err != nil {
		return err
	}
	for _, c := range []struct {
		of   *certificate
		with *tls.Certificate
	}{{&s.dataCert, d}, {&s.adminCert, a}} {
		if c.with != nil && c.of.now.Load() != nil {
			c.of.now.Store(c.with)
		}
	}
	return nil
}
