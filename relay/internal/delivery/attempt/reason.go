package attempt

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"

	"github.com/hubrelay/hubrelay/internal/netguard"
	"github.com/hubrelay/hubrelay/relay"
)

// The reasons of failed attempts, as statistics name them.
const (
	FailedTimeout    = "timeout"
	FailedDNS        = "dns"
	FailedConnection = "connection"
	FailedTLS        = "tls"
	FailedBlocked    = "blocked" // the address is not allowed
	Failed3xx        = "status_3xx"
	Failed4xx        = "status_4xx"
	Failed429        = "status_429"
	Failed5xx        = "status_5xx"
	FailedResponse   = "response" // any other response that is not a success
	FailedPanic      = "panic"
	FailedOther      = "other"
)

// FailureReasons returns all reasons.
func FailureReasons() []string {
	return []string{
		FailedTimeout, FailedDNS, FailedConnection, FailedTLS, FailedBlocked, Failed3xx, Failed4xx, Failed429,
		Failed5xx, FailedResponse, FailedPanic, FailedOther,
	}
}

// FailureReason returns the reason of the error of an attempt.
func FailureReason(err error) string {
	var response *relay.ResponseError
	var blocked *netguard.BlockedError
	var dns *net.DNSError
	switch {
	case errors.As(err, &response):
		return statusReason(response.Status)
	case errors.Is(err, errPanicked):
		return FailedPanic
	case errors.As(err, &blocked):
		return FailedBlocked
	case errors.As(err, &dns):
		return FailedDNS
	case isTimeout(err):
		return FailedTimeout
	case isTLS(err):
		return FailedTLS
	case isConnection(err):
		return FailedConnection
	}
	return FailedOther
}

func statusReason(status int) string {
	switch {
	case status == http.StatusTooManyRequests:
		return Failed429
	case status >= 300 && status < 400:
		return Failed3xx
	case status >= 400 && status < 500:
		return Failed4xx
	case status >= 500 && status < 600:
		return Failed5xx
	}
	return FailedResponse
}

func isTimeout(err error) bool {
	var timed interface{ Timeout() bool }
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.Is(err, errAbandoned) || errors.Is(err, errTooManyAbandoned) ||
		errors.As(err, &timed) && timed.Timeout()
}

func isTLS(err error) bool {
	var record tls.RecordHeaderError
	var certificate *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var alert tls.AlertError
	if errors.As(err, &record) || errors.As(err, &certificate) || errors.As(err, &unknown) ||
		errors.As(err, &host) || errors.As(err, &invalid) || errors.As(err, &alert) ||
		errors.Is(err, http.ErrSchemeMismatch) {
		return true
	}
	var op *net.OpError // crypto/tls wraps alerts in it
	return errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error")
}

func isConnection(err error) bool {
	var op *net.OpError
	var errno syscall.Errno
	return errors.As(err, &op) || errors.As(err, &errno) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}
