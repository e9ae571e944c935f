package webhook

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/internal/filewatch"
	"github.com/hubrelay/hubrelay/internal/httpclient"
	"github.com/hubrelay/hubrelay/relay"
)

// TLS configures the client certificate and the trusted authorities. The files are PEM and read again when they change.
type TLS struct {
	// CertFile and KeyFile are the certificate chain and the private key of the client, both or none.
	CertFile string `koanf:"cert_file" doc:"Client certificate chain (PEM), with key_file."`
	KeyFile  string `koanf:"key_file" doc:"Private key of cert_file (PEM), read again when it changes."`
	// CAFile contains the certificate authorities to trust instead of those of the system.
	CAFile string `koanf:"ca_file" doc:"Trusted authorities (PEM) instead of those of the system."`
	// ServerName is the expected name in the certificate of the receiver. The default is the host of the URL.
	ServerName string `koanf:"server_name" doc:"Expected name in the certificate if it is not the host."`
}

func (t *TLS) validate() error {
	var errs []error
	bad := func(field, problem string) {
		errs = append(errs, &relay.FieldError{Field: "tls." + field, Problem: problem})
	}
	switch {
	case t.CertFile == "" && t.KeyFile != "":
		bad("cert_file", "is missing; key_file requires it")
	case t.CertFile != "" && t.KeyFile == "":
		bad("key_file", "is missing; cert_file requires it")
	}
	if strings.ContainsAny(t.ServerName, " /:@\r\n\t") {
		bad("server_name", "is not a host name")
	}
	var p [3]*pemFile
	for i, f := range t.tlsFiles() {
		if f.name == "" {
			continue
		}
		text, err := filewatch.ReadFile(f.name)
		if err == nil {
			p[i], err = parsePEM(text)
		}
		if err != nil {
			bad(f.key, err.Error())
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...) // certificate or key is missing
	}
	if _, err := t.tlsConfig(nil, p); err != nil {
		if errors.Is(err, errNoAuthority) {
			bad("ca_file", err.Error())
		} else {
			bad("cert_file", err.Error())
		}
	}
	return errors.Join(errs...)
}

type keyedFile struct{ key, name string }

func (t *TLS) tlsFiles() [3]keyedFile {
	return [3]keyedFile{{"cert_file", t.CertFile}, {"key_file", t.KeyFile}, {"ca_file", t.CAFile}}
}

// pemFile is the content of one of the files. A change replaces the pointer.
type pemFile struct{ text []byte }

func parsePEM(text []byte) (*pemFile, error) {
	if !bytes.Contains(text, []byte("-----BEGIN ")) {
		return nil, errors.New("names a file that is not PEM")
	}
	return &pemFile{text: text}, nil
}

var errNoAuthority = errors.New("names a file without a certificate")

// tlsConfig adds the contents of cert_file, key_file and ca_file, each nil if not set, to a copy of base. Its errors
// follow the name of a key and contain no part of the files.
func (t *TLS) tlsConfig(base *tls.Config, p [3]*pemFile) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if base != nil {
		c = base.Clone()
	}
	if t.ServerName != "" {
		c.ServerName = t.ServerName
	}
	if p[0] != nil && p[1] != nil {
		pair, err := tls.X509KeyPair(p[0].text, p[1].text)
		if err != nil {
			return nil, fmt.Errorf("and key_file do not match: %s", strings.TrimPrefix(err.Error(), "tls: "))
		}
		c.Certificates = []tls.Certificate{pair}
	}
	if p[2] != nil {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(p[2].text) {
			return nil, errNoAuthority
		}
	}
	return c, nil
}

// transportCache returns the transport for the current content of the files. It may be used concurrently.
type transportCache struct {
	newTransport func(*tls.Config, [3]*pemFile) (*httpclient.Transport, error)
	base         *tls.Config
	files        [3]*filewatch.Value[*pemFile]
	log          *slog.Logger

	cached atomic.Pointer[cachedTransport]
	mu     sync.Mutex // serializes replacing the transport
}

// cachedTransport is a transport and the content of its files. Invalid content keeps the previous transport.
type cachedTransport struct {
	*httpclient.Transport
	files [3]*pemFile
}

func newTransports(
	c *Config, log *slog.Logger, base *tls.Config, build func(*tls.Config, *x509.CertPool) *httpclient.Transport,
) (*transportCache, error) {
	t := &transportCache{base: base, log: log}
	t.newTransport = func(base *tls.Config, p [3]*pemFile) (*httpclient.Transport, error) {
		config, err := c.TLS.tlsConfig(base, p)
		if err != nil {
			return nil, err
		}
		return build(config, proxyRoots(p[2])), nil
	}
	for i, f := range c.TLS.tlsFiles() {
		if f.name == "" {
			continue
		}
		file, err := filewatch.Open(f.name, parsePEM, log, time.Now)
		if err != nil {
			return nil, fmt.Errorf("tls.%s %w", f.key, err)
		}
		t.files[i] = file
	}
	contents := t.readFiles()
	first, err := t.newTransport(base, contents)
	if err != nil {
		return nil, fmt.Errorf("tls.cert_file %w", err)
	}
	t.cached.Store(&cachedTransport{first, contents})
	return t, nil
}

func (t *transportCache) readFiles() [3]*pemFile {
	var p [3]*pemFile
	for i, f := range t.files {
		if f != nil {
			p[i] = f.Current()
		}
	}
	return p
}

// currentTransport creates a new transport when a file has changed, and closes the idle connections of the old one.
// While a new certificate does not match its key, because one file changed first, the old transport stays.
func (t *transportCache) currentTransport() *httpclient.Transport {
	g := t.cached.Load()
	contents := t.readFiles()
	if contents == g.files {
		return g.Transport
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	g = t.cached.Load()
	if contents == g.files {
		return g.Transport
	}
	next, err := t.newTransport(t.base, contents)
	if err != nil {
		t.log.Error("changed TLS files do not match, the previous ones stay in use", "error", err)
		t.cached.Store(&cachedTransport{g.Transport, contents})
		return g.Transport
	}
	t.cached.Store(&cachedTransport{next, contents})
	g.CloseIdleConnections()
	return next
}

// close closes the idle connections of the current transport. Connections of previous transports close after their idle
// timeout.
func (t *transportCache) close() { t.cached.Load().CloseIdleConnections() }

// proxyRoots returns the certificate authorities for the certificate of a proxy: those of the system and of ca_file.
func proxyRoots(ca *pemFile) *x509.CertPool {
	if ca == nil {
		return nil
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	roots.AppendCertsFromPEM(ca.text)
	return roots
}
