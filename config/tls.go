package config

import (
	"crypto/tls"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// TLS names a listener's certificate chain and its key, both PEM. Both are empty: cleartext.
type TLS struct {
	CertFile, KeyFile string
}

// On tells whether the listener speaks TLS.
func (t TLS) On() bool { return t.CertFile != "" }

// Load reads both files. They are read anew each time, so that a renewed certificate is taken.
func (t TLS) Load() (tls.Certificate, error) {
	cert, err := readRegular(t.CertFile, maxSecret)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("the certificate %s %w", t.CertFile, err)
	}
	key, err := readRegular(t.KeyFile, maxSecret)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("the key %s %w", t.KeyFile, err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("%s and %s are no pair: %s", t.CertFile, t.KeyFile, pairError(err))
	}
	return pair, nil
}

// pairError says what is wrong with a pair. The library's own words hold nothing of what is in the files.
func pairError(err error) string { return strings.TrimPrefix(err.Error(), "tls: ") }

// checkTLS wants both files or neither, and that they are a pair.
func (r *reader) checkTLS(section string, t TLS) {
	certPath, keyPath := section+".tls_cert_file", section+".tls_key_file"
	if r.has(section, certPath, keyPath) {
		return
	}
	switch {
	case t.CertFile == "" && t.KeyFile == "":
		return
	case t.KeyFile == "":
		r.mistake(r.placeOf(certPath), certPath, "is given without tls_key_file: give both for TLS, neither for cleartext")
		return
	case t.CertFile == "":
		r.mistake(r.placeOf(keyPath), keyPath, "is given without tls_cert_file: give both for TLS, neither for cleartext")
		return
	}
	cert, certErr := r.readFile(t.CertFile)
	if certErr != nil {
		r.mistake(r.placeOf(certPath), certPath, "the file %v", certErr)
	}
	key, keyErr := r.readFile(t.KeyFile)
	if keyErr != nil {
		r.mistake(r.placeOf(keyPath), keyPath, "the file %v", keyErr)
	}
	if certErr != nil || keyErr != nil {
		return
	}
	if _, err := tls.X509KeyPair(cert, key); err != nil {
		r.mistake(r.placeOf(keyPath), keyPath, "is no pair with tls_cert_file: %s", pairError(err))
	}
}

// RouterName is admin.router, or the host name and the process id.
func (a Admin) RouterName() string {
	if a.Router != "" {
		return a.Router
	}
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "router"
	}
	return host + "-" + strconv.Itoa(os.Getpid())
}
