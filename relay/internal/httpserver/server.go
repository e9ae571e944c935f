// Package httpserver is the HTTP server of the public, health and admin listeners. It sets all timeouts, reloads
// changed TLS certificates, writes the error envelope, and recovers panics of handlers.
//
// Routes do not belong here. They are in relay/internal/publicapi and relay/internal/adminserver.
package httpserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/clientaddr"
)

// Options are the settings of a listener. Zero durations and sizes mean the defaults in parentheses. These limits
// cannot be turned off.
type Options struct {
	// Name identifies the listener in logs and errors: "server", "health", "admin".
	Name string
	// Addr is host:port. Port 0 selects a free port.
	Addr string
	// Listener is used instead of Addr if it is set. The server closes it.
	Listener net.Listener
	// Handler handles the requests. A panic gets the response 500.unknown.
	Handler http.Handler
	// TrustedProxies are the peers that may send a header of the PROXY protocol with the address of the client. It then
	// is the RemoteAddr of requests.
	TrustedProxies clientaddr.Proxies
	// CertFile and KeyFile turn on TLS with HTTP/2. Both or neither must be set.
	CertFile, KeyFile string
	// ClientCAFile contains the CAs of client certificates. A client may present none. If it is empty, no certificates
	// are requested. It is read once.
	ClientCAFile string
	// ReadHeaderTimeout limits the time from the first byte of a request to the end of its header, and before the first request
	// the time of the TLS handshake (10 s).
	ReadHeaderTimeout time.Duration
	// ReadTimeout limits the time to the end of the request body (30 s).
	ReadTimeout time.Duration
	// WriteTimeout limits the time from the end of the request header to the end of the response (60 s). It should
	// exceed ReadTimeout. Otherwise a client whose body is too slow gets no response.
	WriteTimeout time.Duration
	// IdleTimeout is the maximum time between two requests on a connection (2 min).
	IdleTimeout time.Duration
	// PingInterval is the time without data on an HTTP/2 connection before a ping is sent (25 s). PongTimeout is the
	// time to wait for its acknowledgment (25 s). After that, the connection is closed with its requests.
	PingInterval, PongTimeout time.Duration
	// MaxHeaderBytes limits the request line and header (16 KiB). More than maxHeaderFields fields are rejected, too.
	MaxHeaderBytes int
	// ConnLimits limit the connections. Idle ones are closed first.
	ConnLimits ConnLimits
	// ConnObserver counts connections. It may be nil.
	ConnObserver ConnObserver
	// Grace is the time that Run waits for requests in flight after its context ended (15 s).
	Grace time.Duration
	// Log is the logger of the listener. If it is nil, messages are discarded.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	for _, d := range []struct {
		value        *time.Duration
		defaultValue time.Duration
	}{
		{&o.ReadHeaderTimeout, 10 * time.Second},
		{&o.ReadTimeout, 30 * time.Second},
		{&o.WriteTimeout, time.Minute},
		{&o.IdleTimeout, 2 * time.Minute},
		{&o.PingInterval, 25 * time.Second},
		{&o.PongTimeout, 25 * time.Second},
		{&o.Grace, 15 * time.Second},
	} {
		if *d.value <= 0 {
			*d.value = d.defaultValue
		}
	}
	if o.MaxHeaderBytes <= 0 {
		o.MaxHeaderBytes = 16 << 10
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Server is one listener with its HTTP server. Timeouts and shutdown do not apply to hijacked connections, such as
// websockets.
type Server struct {
	opt      Options
	listener net.Listener
	http     *http.Server
	limiter  *connLimiter
	newConns newConns
	close    sync.Once
}

// Listen opens the listener and loads the certificate, so their errors are reported at start. It does not serve yet.
func Listen(o Options) (*Server, error) {
	o = o.withDefaults()
	s := &Server{opt: o, http: newHTTPServer(o), limiter: newConnLimiter(o)}
	s.http.ConnState = func(conn net.Conn, state http.ConnState) {
		s.limiter.onState(conn, state)
		s.newConns.onState(conn, state)
	}
	var secure *tls.Config
	if o.CertFile != "" || o.KeyFile != "" {
		cert, err := LoadCertificate(o.CertFile, o.KeyFile, o.Log)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.Name, err)
		}
		secure = &tls.Config{
			MinVersion: tls.VersionTLS12, GetCertificate: cert.GetCertificate, NextProtos: []string{"h2", "http/1.1"},
		}
		if err := requestClientCertificates(secure, o.ClientCAFile); err != nil {
			return nil, fmt.Errorf("%s: %w", o.Name, err)
		}
	}
	l := o.Listener
	if l == nil {
		var err error
		if l, err = net.Listen("tcp", o.Addr); err != nil {
			return nil, fmt.Errorf("cannot listen, choose another %s.listen: %w", o.Name, err)
		}
	}
	l = &limitListener{l, s.limiter}
	if len(o.TrustedProxies.Networks) > 0 {
		l = newProxyListener(l, o)
	}
	s.listener = &plainListener{l, secure, o.Log}
	return s, nil
}

// requestClientCertificates makes a listener request certificates of the CAs in a file, unless its name is empty.
func requestClientCertificates(c *tls.Config, caFile string) error {
	if caFile == "" {
		return nil
	}
	text, err := os.ReadFile(caFile)
	if err != nil {
		return fmt.Errorf("read the CAs of client certificates: %w", err)
	}
	c.ClientCAs = x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM(text) {
		return fmt.Errorf("%s contains no CA certificate in PEM", caFile)
	}
	c.ClientAuth = tls.VerifyClientCertIfGiven
	return nil
}

func newHTTPServer(o Options) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true) // plainListener terminates TLS
	return &http.Server{
		Handler:           setTLS(trackRequests(rejectManyFields(Recover(o.Handler, o.Log)))),
		ConnContext:       withConn,
		ReadHeaderTimeout: o.ReadHeaderTimeout,
		ReadTimeout:       o.ReadTimeout,
		WriteTimeout:      o.WriteTimeout,
		IdleTimeout:       o.IdleTimeout,
		MaxHeaderBytes:    o.MaxHeaderBytes,
		Protocols:         protocols,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, SendPingTimeout: o.PingInterval, PingTimeout: o.PongTimeout,
			MaxReceiveBufferPerConnection: connBuffer, MaxReceiveBufferPerStream: streamBuffer,
			MaxReadFrameSize: maxFrame,
		},
		ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug), // errors of clients
	}
}

// Addr returns the address of the listener with the actual port.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Run serves until ctx ends. It then stops listening and waits for the requests in flight, at most Grace. It returns an
// error if serving failed or if requests had to be aborted. It must be called only once.
func (s *Server) Run(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { ended <- s.http.Serve(s.listener) }()
	select {
	case err := <-ended:
		if errors.Is(err, http.ErrServerClosed) { // Close was called
			return nil
		}
		return fmt.Errorf("%s: serve on %s: %w", s.opt.Name, s.Addr(), err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.opt.Grace)
	defer cancel()
	defer time.AfterFunc(newConnGrace, s.newConns.closeAll).Stop()
	err := s.http.Shutdown(grace)
	if err != nil {
		_ = s.http.Close()
		err = fmt.Errorf("%s: requests were cut off after %s: %w", s.opt.Name, s.opt.Grace, err)
	}
	<-ended //nolint:errcheck // it is http.ErrServerClosed after Shutdown or Close
	return err
}

// Close closes the listener and all connections immediately. It may be called twice and before Run.
func (s *Server) Close() error {
	var err error
	s.close.Do(func() {
		err = s.http.Close()
		if e := s.listener.Close(); e != nil && !errors.Is(e, net.ErrClosed) {
			err = errors.Join(err, e)
		}
	})
	return err
}
