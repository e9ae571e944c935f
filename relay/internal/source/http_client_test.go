package source

import (
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// A private certificate of the upstream is accepted only with ca_file.
func TestNewHTTPClient(t *testing.T) {
	t.Parallel()
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	file := filepath.Join(t.TempDir(), "ca.pem")
	get := func(caFile string) error {
		c, err := NewHTTPClient(caFile)
		if err != nil {
			return err
		}
		defer c.CloseIdleConnections()
		response, err := c.Get(s.URL)
		if err == nil {
			err = response.Body.Close()
		}
		return err
	}
	if err := get(file); err == nil || !strings.Contains(err.Error(), "ca_file") {
		t.Errorf("missing file: got %v", err)
	}
	if err := os.WriteFile(file, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := get(file); err == nil || !strings.Contains(err.Error(), "no certificate") {
		t.Errorf("file without a certificate: got %v", err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	// On a busy machine, a handshake can exceed its time limit.
	testkit.Eventually(t, "a response", func() error { return get(file) })
	testkit.Eventually(t, "an unknown authority", func() error {
		err := get("")
		if err == nil {
			return errors.New("the certificate was accepted")
		}
		if !strings.Contains(err.Error(), "certificate") {
			return err
		}
		return nil
	})
}

// An upstream cannot send any number of responses 1xx before the one that counts.
func TestNewHTTPClient_LimitsHeader(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", strings.Repeat("x", 1000))
		for range 1000 {
			w.WriteHeader(http.StatusEarlyHints)
		}
	}))
	defer s.Close()
	c, err := NewHTTPClient("")
	if err != nil {
		t.Fatal(err)
	}
	response, err := c.Get(s.URL)
	if err == nil {
		_ = response.Body.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "headers exceeded 65536 bytes") {
		t.Errorf("got %v, want an error about the header", err)
	}
}
