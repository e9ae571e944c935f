package httpserver

import (
	"crypto/tls"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"
)

// recheckInterval is how long a certificate is used before its files are looked at again.
const recheckInterval = time.Second

// CertificateLoader is a TLS certificate in two PEM files, read again when one of them changes. Get may be called
// concurrently.
type CertificateLoader struct {
	certFile, keyFile string
	log               *slog.Logger
	now               func() time.Time

	mu       sync.Mutex
	current  *tls.Certificate
	fileInfo [2]fs.FileInfo // of the files when they were last read, well or not
	checked  time.Time
}

// LoadCertificate reads the certificate (chain first the leaf) and its private key. It fails where they cannot be read
// or do not belong together.
func LoadCertificate(certFile, keyFile string, log *slog.Logger) (*CertificateLoader, error) {
	c := &CertificateLoader{certFile: certFile, keyFile: keyFile, log: log, now: time.Now}
	seen, err := c.stat()
	if err != nil {
		return nil, err
	}
	if err := c.read(); err != nil {
		return nil, err
	}
	c.fileInfo, c.checked = seen, c.now()
	return c, nil
}

// GetCertificate is a tls.Config's GetCertificate. It looks at the files at most once a second; where they cannot be read (any
// more), the certificate that was read last stays in use and the reason is logged once.
func (c *CertificateLoader) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now().Sub(c.checked) >= recheckInterval {
		c.refresh()
	}
	return c.current, nil
}

func (c *CertificateLoader) refresh() {
	c.checked = c.now()
	seen, err := c.stat()
	if err == nil && sameFile(seen[0], c.fileInfo[0]) && sameFile(seen[1], c.fileInfo[1]) {
		return
	}
	known := c.fileInfo == [2]fs.FileInfo{} && err != nil // the files were missing before, and said so
	c.fileInfo = seen
	if err == nil {
		err = c.read()
	}
	switch {
	case err == nil:
		c.log.Info("the TLS certificate was read again", "cert_file", c.certFile)
	case !known:
		c.log.Error("the TLS certificate cannot be read again, the old one stays in use", "error", err)
	}
}

func (c *CertificateLoader) stat() ([2]fs.FileInfo, error) {
	var seen [2]fs.FileInfo
	for i, file := range []string{c.certFile, c.keyFile} {
		info, err := os.Stat(file)
		if err != nil {
			return [2]fs.FileInfo{}, fmt.Errorf("look at the TLS files: %w", err)
		}
		seen[i] = info
	}
	return seen, nil
}

func (c *CertificateLoader) read() error {
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("read the TLS certificate %s with the key %s: %w", c.certFile, c.keyFile, err)
	}
	c.current = &pair
	return nil
}

func sameFile(a, b fs.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}
