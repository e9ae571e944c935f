package attempt

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/netguard"
	"github.com/hubrelay/hubrelay/relay"
)

func TestFailureReason(t *testing.T) {
	t.Parallel()
	status := func(n int) error { return fmt.Errorf("post to h: %w", &relay.ResponseError{Status: n}) }
	for _, c := range []struct {
		err  error
		want string
	}{
		{status(429), Failed429},
		{relay.RetryAfter(status(429), time.Second), Failed429},
		{status(301), Failed3xx},
		{relay.Permanent(status(404)), Failed4xx},
		{relay.Gone(status(410)), Failed4xx},
		{status(503), Failed5xx},
		{status(200), FailedResponse},
		{status(0), FailedResponse},
		{status(101), FailedResponse},
		{fmt.Errorf("%w (%T)", errPanicked, 1), FailedPanic},
		{
			&net.OpError{Op: "dial", Err: &netguard.BlockedError{Address: "10.0.0.1", Kind: "a private address"}},
			FailedBlocked,
		},
		{&net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "x"}}, FailedDNS},
		{&net.DNSError{Err: "i/o timeout", IsTimeout: true}, FailedDNS},
		{context.DeadlineExceeded, FailedTimeout},
		{fmt.Errorf("post to h: %w", timeoutError(time.Second)), FailedTimeout},
		{errAbandoned, FailedTimeout},
		{errTooManyAbandoned, FailedTimeout},
		{&net.OpError{Op: "dial", Err: syscall.ETIMEDOUT}, FailedTimeout},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, FailedConnection},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, FailedConnection},
		{fmt.Errorf("post to h: %w", io.EOF), FailedConnection},
		{&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, FailedTLS},
		{x509.HostnameError{Certificate: &x509.Certificate{}}, FailedTLS},
		{x509.CertificateInvalidError{}, FailedTLS},
		{tls.RecordHeaderError{Msg: "x"}, FailedTLS},
		{&net.OpError{Op: "remote error", Err: tls.AlertError(40)}, FailedTLS},
		{errors.New("the connection failed (details left out)"), FailedOther},
		{context.Canceled, FailedOther},
	} {
		if got := FailureReason(c.err); got != c.want {
			t.Errorf("%v: %s, want %s", c.err, got, c.want)
		}
		if !slices.Contains(FailureReasons(), c.want) {
			t.Errorf("%s is none of the reasons", c.want)
		}
	}
}

// The errors of a real client are classified too.
func TestFailureReason_RealClient(t *testing.T) {
	t.Parallel()
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	secure.StartTLS()
	defer secure.Close()
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-r.Context().Done()
			return
		}
		panic(http.ErrAbortHandler) // closes the connection
	}))
	defer plain.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := "http://" + listener.Addr().String()
	_ = listener.Close()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for url, want := range map[string]string{
		secure.URL: FailedTLS, "https" + plain.URL[4:]: FailedTLS,
		closed: FailedConnection, plain.URL: FailedConnection,
		plain.URL + "/slow": FailedTimeout,
	} {
		if client.Timeout = 0; want == FailedTimeout {
			client.Timeout = 100 * time.Millisecond
		}
		res, err := client.Get(url)
		if err == nil {
			_ = res.Body.Close()
		}
		if got := FailureReason(err); got != want {
			t.Errorf("%v: %s, want %s", err, got, want)
		}
	}
}
