// Package webhook delivers notifications by HTTP POST, signed by Standard Webhooks 1.0
// (https://github.com/standard-webhooks/standard-webhooks).
//
// It makes one attempt and classifies the response. Retries, schedules, limits and dead letters belong to
// relay/internal/delivery. It imports no other sink.
package webhook

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/internal/httpclient"
	"github.com/hubrelay/hubrelay/internal/netguard"
	"github.com/hubrelay/hubrelay/internal/redact"
	"github.com/hubrelay/hubrelay/internal/tmpl"
	"github.com/hubrelay/hubrelay/relay"
)

const (
	// keptResponse is the maximum part of a response in a dead letter in bytes.
	keptResponse = httpclient.MaxResponseBody
	// drainedResponse is the maximum number of bytes to read in addition, to reuse the connection. A longer response
	// closes it.
	drainedResponse = 64 << 10
)

var (
	_ relay.Sink      = (*Sink)(nil)
	_ relay.Previewer = (*Sink)(nil)
	_ relay.Config    = (*Config)(nil)
)

// Kind describes the sink type webhook.
func Kind() relay.SinkKind {
	return relay.SinkKind{
		Type:    "webhook",
		Config:  func() relay.Config { return defaultConfig() },
		Batches: true,
		Open: relay.OpenAs("webhook",
			func(s relay.SinkSettings, c *Config) (*Sink, error) { return open(s, c, nil) }),
	}
}

func defaultConfig() *Config {
	return &Config{
		Format:      formatNotification,
		Metadata:    metadataBatches,
		Compression: Compression{MinSize: defaultMinSize},
	}
}

// Sink posts to one URL. Deliver may be called concurrently.
type Sink struct {
	endpoint        func() *endpoint
	recent          redact.Recent // URLs and bearer tokens
	bearer          func() string
	header          http.Header
	operatorHeaders map[string]bool // canonical names of the configured headers
	name            string
	format          string
	metadata        string
	template        func() *tmpl.Template       // nil except for formatTemplate
	judge           func([]byte) error          // checks rendered bodies; may be nil
	requestHead     atomic.Pointer[requestHead] // of the last request
	events          *CloudEvents
	compressor      *compressor
	tokens          *tokenSource // nil without oauth2
	transports      *transportCache
	signers         *secrets
	log             *slog.Logger
	now             func() time.Time
	// secretTexts are texts that errors must not contain, in addition to the URL and the header Authorization.
	secretTexts []string
}

// open does not connect. base may be nil.
func open(s relay.SinkSettings, c *Config, base *tls.Config) (*Sink, error) {
	g, err := netguard.New(c.AllowCIDRs)
	if err != nil {
		return nil, err
	}
	sink := &Sink{
		name: s.Name, format: c.Format, metadata: c.Metadata, events: &c.CloudEvents, log: s.Log, now: time.Now,
		compressor: newCompressor(c.Compression, time.Now),
	}
	if err := c.checkEndpoint(g); err != nil {
		return nil, err
	}
	if sink.endpoint, err = c.urlSetting(g).Open(s.Log, time.Now); err != nil {
		return nil, err
	}
	if _, err := c.authorizationKey(); err != nil {
		return nil, err
	}
	if sink.bearer, err = c.bearerSetting().Open(s.Log, time.Now); err != nil {
		return nil, err
	}
	if sink.header, err = c.parseHeaders(); err != nil {
		return nil, err
	}
	through, err := c.parsedProxy()
	if err != nil {
		return nil, err
	}
	if c.Format == formatTemplate {
		source := c.templateSource()
		if sink.template, err = source.Open(s); err != nil {
			return nil, err
		}
		sink.judge = source.CheckOutput
	}
	sink.secretTexts = secretTexts(sink.header, through)
	sink.operatorHeaders = make(map[string]bool, len(sink.header))
	for name := range sink.header {
		sink.operatorHeaders[name] = true
	}
	addDefaultHeaders(sink.header, s.UserAgent, c)
	if sink.transports, err = newTransports(c, s.Log, base, transportBuilder(g, through)); err != nil {
		return nil, err
	}
	if c.OAuth2.isSet() {
		round := func() http.RoundTripper { return sink.transports.currentTransport().Transport }
		if sink.tokens, err = newTokenSource(&c.OAuth2, g, s.Log, round); err != nil {
			return nil, err
		}
		sink.secretTexts = append(sink.secretTexts, sink.tokens.secretTexts()...)
	}
	if sink.signers, err = newSecrets(c, s.Log, time.Now); err != nil {
		return nil, err
	}
	return sink, nil
}

// transportBuilder returns a function that creates transports. Without a proxy each address is checked when it is
// dialed, with a proxy before it is sent to the proxy. Proxies in the environment are ignored.
func transportBuilder(g *netguard.Guard, through *url.URL) func(*tls.Config, *x509.CertPool) *httpclient.Transport {
	return func(c *tls.Config, roots *x509.CertPool) *httpclient.Transport {
		t := httpclient.NewTransport(g, c)
		if through != nil {
			p := &proxyDialer{url: through, guard: g, resolver: net.DefaultResolver, roots: roots}
			t.SetDialer(p.DialContext)
		}
		return t
	}
}

// Close closes idle connections, and cancels a request for a token. It may be called twice.
func (s *Sink) Close() error {
	if s.tokens != nil {
		s.tokens.close()
	}
	s.transports.close()
	return nil
}
