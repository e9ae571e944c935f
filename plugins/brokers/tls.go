package brokers

import (
	"crypto/tls"
	"crypto/x509"
	"os"
)

// tlsConfig reads the TLS files and returns the configuration of a connection to host. It returns nil if the connection
// is not encrypted.
func (s *Sink) tlsConfig(host string) (*tls.Config, error) {
	c := s.config.TLS
	if c == nil {
		return nil, nil
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if c.ServerName != "" {
		out.ServerName = c.ServerName
	}
	if c.CAFile != "" {
		text, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fieldError("tls.ca_file", "cannot be read: %v", err)
		}
		if out.RootCAs = x509.NewCertPool(); !out.RootCAs.AppendCertsFromPEM(text) {
			return nil, fieldError("tls.ca_file", "names %s, which contains no certificate in PEM format", c.CAFile)
		}
	}
	if c.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fieldError("tls.cert_file", "and key_file cannot be used: %v", err)
		}
		out.Certificates = []tls.Certificate{pair}
	}
	return out, nil
}
