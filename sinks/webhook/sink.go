package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/guard"
)

const (
	// keptAnswer is how much of an answer a dead letter shows.
	keptAnswer = 1 << 10
	// drainedAnswer is how much more is read so that the connection can be used again; a longer answer closes it.
	drainedAnswer = 64 << 10
	dialTimeout   = 10 * time.Second
	idleTimeout   = 90 * time.Second
	// idleConns is more than any sensible concurrency, so that a busy sink does not dial for every request.
	idleConns = 128
	// A connection that is silent for pingAfter is asked for a sign of life, and left when none comes within pingWait: all
	// attempts share one HTTP/2 connection, and the kernel takes a quarter of an hour to notice that it is dead.
	pingAfter = 15 * time.Second
	pingWait  = 10 * time.Second
	// longestWait bounds what Retry-After may say before it is made a duration; deliver caps it further.
	longestWait = 365 * 24 * time.Hour
)

// Kind is the webhook's entry in the list of kinds of sinks.
func Kind() relay.SinkKind {
	return relay.SinkKind{
		Type:   "webhook",
		Config: func() relay.SinkConfig { return &Config{} },
		Open: func(s relay.SinkSettings, c relay.SinkConfig) (relay.Sink, error) {
			cfg, ok := c.(*Config)
			if !ok {
				return nil, fmt.Errorf("open webhook %s: its configuration is a %T", s.Name, c)
			}
			return open(s, cfg, nil)
		},
	}
}

// Sink posts to one URL. Deliver may be called concurrently.
type Sink struct {
	host      string
	template  *http.Request
	transport *http.Transport
	secrets   *secrets
	now       func() time.Time
	// hidden are parts of the URL that no error may show.
	hidden []string
}

func open(s relay.SinkSettings, c *Config, tlsConfig *tls.Config) (*Sink, error) {
	g, err := c.guard()
	if err != nil {
		return nil, fmt.Errorf("open webhook %s: %w", s.Name, err)
	}
	u, err := c.target(g)
	if err != nil {
		return nil, fmt.Errorf("open webhook %s: %w", s.Name, err)
	}
	keys, err := newSecrets(c, s.Log, time.Now)
	if err != nil {
		return nil, fmt.Errorf("open webhook %s: %w", s.Name, err)
	}
	if len(c.Secrets)+len(c.SecretFiles) == 0 {
		s.Log.Warn("webhook has no secrets, so its requests are not signed and receivers cannot tell who sent them")
	}
	return &Sink{
		host: u.Host, template: template(u, s.UserAgent), transport: newTransport(g, tlsConfig),
		secrets: keys, now: time.Now, hidden: hiddenParts(u),
	}, nil
}

// newTransport has no proxy: the guard must judge the target itself.
func newTransport(g *guard.Guard, tlsConfig *tls.Config) *http.Transport {
	if tlsConfig == nil {
		tlsConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second, Control: g.Control}
	return &http.Transport{
		DialContext:            dialer.DialContext,
		TLSClientConfig:        tlsConfig,
		TLSHandshakeTimeout:    dialTimeout,
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingWait},
		MaxIdleConnsPerHost:    idleConns,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: 64 << 10,
		DisableCompression:     true,
	}
}

func template(u *url.URL, userAgent string) *http.Request {
	if userAgent == "" {
		userAgent = "hubrelay"
	}
	h := http.Header{"Content-Type": {"application/json"}, "User-Agent": {userAgent}}
	target := *u
	if u.User != nil {
		password, _ := u.User.Password()
		pair := u.User.Username() + ":" + password
		h.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(pair)))
		target.User = nil
	}
	return &http.Request{
		Method: http.MethodPost, URL: &target, Host: target.Host, Header: h,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
}

// Deliver posts d once. The body is the notification as clients see it; several are sent as a JSON array.
func (s *Sink) Deliver(ctx context.Context, d relay.Delivery) error {
	// RoundTrip rather than a Client: it follows no redirect, keeps no cookie and puts no URL in its errors.
	resp, err := s.transport.RoundTrip(s.request(ctx, d))
	if err != nil {
		return s.networkError(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		// The receiver has taken it; whatever happens to the rest of the answer changes nothing.
		_, _ = io.CopyN(io.Discard, resp.Body, keptAnswer+drainedAnswer)
		return nil
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		// Its body is the bare connection, and reading that would not end with ctx.
		return fmt.Errorf("post to %s: %w", s.host, &relay.AnswerError{Status: resp.StatusCode})
	}
	return s.judge(resp)
}

func (s *Sink) request(ctx context.Context, d relay.Delivery) *http.Request {
	body := payload(d)
	req := s.template.WithContext(ctx)
	h := make(http.Header, len(s.template.Header)+3)
	for k, v := range s.template.Header {
		h[k] = v
	}
	// Written in lower case as Standard Webhooks spells them, for receivers that compare byte for byte.
	now := s.now().Unix()
	h["webhook-id"] = []string{d.ID}
	h["webhook-timestamp"] = []string{strconv.FormatInt(now, 10)}
	if keys := s.secrets.current(); len(keys) > 0 {
		h["webhook-signature"] = []string{sign(keys, d.ID, now, body)}
	}
	req.Header = h
	req.ContentLength = int64(len(body))
	req.Body = io.NopCloser(bytes.NewReader(body))
	// Lets the transport start over on a fresh connection when an idle one turned out closed before a byte was sent.
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	return req
}

func payload(d relay.Delivery) []byte {
	if len(d.Notifications) == 1 {
		return d.Notifications[0].Data
	}
	parts := make([][]byte, len(d.Notifications))
	for i, n := range d.Notifications {
		parts[i] = n.Data
	}
	return append(append([]byte{'['}, bytes.Join(parts, []byte{','})...), ']')
}

// judge says what an answer other than 2xx means.
func (s *Sink) judge(resp *http.Response) error {
	kept, _ := io.ReadAll(io.LimitReader(resp.Body, keptAnswer))
	if len(kept) == keptAnswer {
		_, _ = io.CopyN(io.Discard, resp.Body, drainedAnswer)
	}
	err := fmt.Errorf("post to %s: %w", s.host, &relay.AnswerError{
		Status: resp.StatusCode, Body: strings.ToValidUTF8(string(kept), ""),
	})
	switch resp.StatusCode {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return relay.Permanent(err)
	case http.StatusGone:
		return relay.Gone(err)
	}
	if wait, ok := retryAfter(resp.Header.Get("Retry-After"), s.now()); ok {
		return relay.RetryAfter(err, wait)
	}
	return err
}

// retryAfter reads seconds or an HTTP date (RFC 9110, 10.2.3).
func retryAfter(value string, now time.Time) (time.Duration, bool) {
	value = strings.TrimSpace(value)
	if value == "" {
		return 0, false
	}
	if seconds, err := strconv.ParseUint(value, 10, 63); err == nil {
		if seconds > uint64(longestWait/time.Second) {
			return longestWait, true
		}
		return time.Duration(seconds) * time.Second, true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	return min(max(at.Sub(now), 0), longestWait), true
}

// networkError names the host and nothing else of the URL.
func (s *Sink) networkError(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	if dial := (*net.OpError)(nil); errors.As(err, &dial) && dial.Op == "dial" {
		// It comes from this machine, and the far side has no say in it: the words it shares with the URL are chance.
		return fmt.Errorf("post to %s: %w", s.host, err)
	}
	text := err.Error()
	for _, part := range s.hidden {
		if strings.Contains(text, part) {
			return fmt.Errorf("post to %s: the connection failed (details left out, since they repeat the url)", s.host)
		}
	}
	return fmt.Errorf("post to %s: %w", s.host, err)
}

// hiddenParts are the parts of a URL that may be credentials; very short ones hide nothing.
func hiddenParts(u *url.URL) []string {
	parts := []string{u.RawQuery, strings.Trim(u.EscapedPath(), "/"), strings.Trim(u.Path, "/")}
	if u.User != nil {
		password, _ := u.User.Password()
		parts = append(parts, u.User.Username(), password)
	}
	for _, values := range u.Query() {
		parts = append(parts, values...)
	}
	var out []string
	for _, p := range parts {
		if len(p) >= 4 {
			out = append(out, p)
		}
	}
	return out
}

// Close closes idle connections. It may be called twice.
func (s *Sink) Close() error {
	s.transport.CloseIdleConnections()
	return nil
}
