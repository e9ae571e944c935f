package httpserver

import (
	"crypto/tls"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/internal/filewatch"
)

// recheckInterval is the minimum time between two checks of the files of a certificate.
const recheckInterval = time.Second

// CertificateLoader loads a TLS certificate from two PEM files, and again when one of them changes. GetCertificate is
// safe for concurrent use.
type CertificateLoader struct {
	certFile, keyFile string
	log               *slog.Logger
	now               func() time.Time

	mu       sync.Mutex
	current  *tls.Certificate
	fileInfo [2]fs.FileInfo // the files at the last read, successful or not
	checked  time.Time
}

// LoadCertificate reads a certificate chain, leaf first, and the private key. It returns an error if they cannot be
// read or do not match.
func LoadCertificate(certFile, keyFile string, log *slog.Logger) (*CertificateLoader, error) {
	c := &CertificateLoader{certFile: certFile, keyFile: keyFile, log: log, now: time.Now}
	info, err := c.stat()
	if err != nil {
		return nil, err
	}
	if err := c.read(); err != nil {
		return nil, err
	}
	c.fileInfo, c.checked = info, c.now()
	return c, nil
}

// GetCertificate is for the field of the same name in tls.Config. It checks the files at most once per second. If they
// cannot be read, it logs the error once and returns the last valid certificate.
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
	info, err := c.stat()
	if err == nil && filewatch.IsSame(info[0], c.fileInfo[0]) && filewatch.IsSame(info[1], c.fileInfo[1]) {
		return
	}
	isRepeat := c.fileInfo == [2]fs.FileInfo{} && err != nil // the files were missing before
	c.fileInfo = info
	if err == nil {
		err = c.read()
	}
	switch {
	case err == nil:
		c.log.Info("TLS certificate reloaded", "cert_file", c.certFile)
	case !isRepeat:
		c.log.Error("TLS certificate reload failed", "cert_file", c.certFile, "error", err)
	}
}

func (c *CertificateLoader) stat() ([2]fs.FileInfo, error) {
	var infos [2]fs.FileInfo
	for i, file := range []string{c.certFile, c.keyFile} {
		info, err := filewatch.Stat(file)
		if err != nil {
			return [2]fs.FileInfo{}, fmt.Errorf("check the TLS files: %w", err)
		}
		infos[i] = info
	}
	return infos, nil
}

func (c *CertificateLoader) read() error {
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("read the TLS certificate %s with the key %s: %w", c.certFile, c.keyFile, err)
	}
	c.current = &pair
	return nil
}
