package httpserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// Options are the settings of a listener. Zero durations and sizes mean the defaults that are named here; there is no
// way to have no limit.
type Options struct {
	// Name says in logs and errors which listener it is: "server", "health", "admin".
	Name string
	// Addr is host:port; port 0 picks a free one.
	Addr string
	// Listener is used instead of Addr if it is set. The server closes it.
	Listener net.Listener
	// Handler answers. Its panics are answered with 500.unknown.
	Handler http.Handler
	// CertFile and KeyFile turn on TLS, and HTTP/2 with it; both or none.
	CertFile, KeyFile string
	// ReadHeaderTimeout bounds the time from the first byte of a request to the end of its header, and the TLS
	// handshake (10 s).
	ReadHeaderTimeout time.Duration
	// ReadTimeout bounds the time to the end of a request's body (30 s).
	ReadTimeout time.Duration
	// WriteTimeout bounds the time from the end of a request's header to the end of the answer (60 s). It should
	// exceed ReadTimeout, so that a body that came too slowly still gets its answer.
	WriteTimeout time.Duration
	// IdleTimeout is how long a connection is kept between two requests (2 min).
	IdleTimeout time.Duration
	// PingInterval is how long nothing may come on a connection of HTTP/2 before it is asked whether it is still there, and
	// PongTimeout how long that may take (25 s both). It is closed then, with the requests in hand.
	PingInterval, PongTimeout time.Duration
	// MaxHeaderBytes bounds the request line and header (32 KiB).
	MaxHeaderBytes int
	// Grace is how long Run waits for requests in hand when its context ends (15 s).
	Grace time.Duration
	// Log is the listener's logger (none).
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	for _, d := range []struct {
		value *time.Duration
		usual time.Duration
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
			*d.value = d.usual
		}
	}
	if o.MaxHeaderBytes <= 0 {
		o.MaxHeaderBytes = 32 << 10
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Server is one listener with its HTTP server. A connection that is hijacked, as a websocket is, leaves the server's
// time-outs and its shutdown behind.
type Server struct {
	opt      Options
	listener net.Listener
	http     *http.Server
	silent   newConns
	close    sync.Once
}

// Listen opens the listener, so that a port in use or a bad certificate is known at start, and serves nothing yet.
func Listen(o Options) (*Server, error) {
	o = o.withDefaults()
	s := &Server{opt: o, http: newHTTPServer(o)}
	s.http.ConnState = s.silent.onState
	if o.CertFile != "" || o.KeyFile != "" {
		cert, err := LoadCertificate(o.CertFile, o.KeyFile, o.Log)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", o.Name, err)
		}
		s.http.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: cert.GetCertificate}
	}
	l := o.Listener
	if l == nil {
		var err error
		if l, err = net.Listen("tcp", o.Addr); err != nil {
			return nil, fmt.Errorf("cannot listen, choose another %s.listen: %w", o.Name, err)
		}
	}
	if s.http.TLSConfig == nil {
		l = &envelopeListener{l}
	}
	s.listener = l
	return s, nil
}

func newHTTPServer(o Options) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true) // a proxy may speak it; it gets the same answers
	return &http.Server{
		Handler:           Recover(o.Handler, o.Log),
		ReadHeaderTimeout: o.ReadHeaderTimeout,
		ReadTimeout:       o.ReadTimeout,
		WriteTimeout:      o.WriteTimeout,
		IdleTimeout:       o.IdleTimeout,
		MaxHeaderBytes:    o.MaxHeaderBytes,
		Protocols:         protocols,
		HTTP2:             &http.HTTP2Config{SendPingTimeout: o.PingInterval, PingTimeout: o.PongTimeout},
		ErrorLog:          slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug), // what clients do wrong
	}
}

// Addr is the address that is listened on, with the real port.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Run serves until ctx ends, then stops listening and waits for the requests in hand, at most Grace. It returns nil
// after that, and an error where serving failed or requests had to be cut off. It can run once.
func (s *Server) Run(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() {
		if s.http.TLSConfig != nil {
			ended <- s.http.ServeTLS(s.listener, "", "")
		} else {
			ended <- s.http.Serve(s.listener)
		}
	}()
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
	defer time.AfterFunc(newConnGrace, s.silent.closeAll).Stop()
	err := s.http.Shutdown(grace)
	if err != nil {
		_ = s.http.Close()
		err = fmt.Errorf("%s: requests were cut off after %s: %w", s.opt.Name, s.opt.Grace, err)
	}
	<-ended //nolint:errcheck // http.ErrServerClosed, by Shutdown or Close
	return err
}

// Close ends the listener and all its connections at once. It may be called twice and before Run.
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
