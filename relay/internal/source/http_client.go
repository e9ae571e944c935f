package source

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
)

// maxTokenHeader is the maximum size of the headers of a response to a token request, including 1xx responses, in bytes.
const maxTokenHeader = 64 << 10

// NewHTTPClient returns an HTTP client that trusts the certificates in caFile, or the ones of the system if caFile is
// empty. It may dial any address. Unlike the addresses of sinks, the address of an upstream comes from the operator
// only.
func NewHTTPClient(caFile string) (*http.Client, error) {
	transport, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return nil, errors.New("unexpected type of http.DefaultTransport")
	}
	transport = transport.Clone()
	// A connection has one request for a token. Another one, or frames of HTTP/2 after the response, would cost memory and CPU time.
	transport.DisableKeepAlives = true
	transport.Protocols = new(http.Protocols)
	transport.Protocols.SetHTTP1(true)
	transport.MaxResponseHeaderBytes = maxTokenHeader
	if caFile != "" {
		text, err := os.ReadFile(caFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("ca_file: %s contains no certificate", caFile)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{Transport: transport}, nil
}
