package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/egress"
	"github.com/hubrelay/hubrelay/relay/guard"
	"github.com/hubrelay/hubrelay/relay/templates"
)

const (
	// keptAnswer is how much of an answer a dead letter shows.
	keptAnswer = egress.KeptAnswer
	// drainedAnswer is how much more is read so that the connection can be used again; a longer answer closes it.
	drainedAnswer = 64 << 10
	longestWait   = egress.LongestWait
	// shortestHidden keeps a header like "1" from blotting out every 1.
	shortestHidden = 4
)

// Kind is the webhook's entry in the list of kinds of sinks.
func Kind() relay.SinkKind {
	return relay.SinkKind{
		Type:    "webhook",
		Config:  func() relay.SinkConfig { return &Config{Format: formatNotification} },
		Batches: true,
		Open:    relay.OpenAs("webhook", func(s relay.SinkSettings, c *Config) (*Sink, error) { return open(s, c, nil) }),
	}
}

// Sink posts to one URL. Deliver may be called concurrently.
type Sink struct {
	endpoint   func() *endpoint
	bearer     func() string
	header     http.Header
	operators  map[string]bool // the canonical names of headers whose values the operator gave
	name       string
	format     string
	template   func() *templates.Template // nil but for formatTemplate
	judge      func([]byte) error         // of what it renders; may be nil
	heading    atomic.Pointer[heading]    // the last one
	transports *transports
	secrets    *secrets
	now        func() time.Time
	// hidden are texts besides the URL and the header Authorization that no error may show.
	hidden []string
}

// open dials nothing. base may be nil.
func open(s relay.SinkSettings, c *Config, base *tls.Config) (*Sink, error) {
	g, err := guard.New(c.AllowCIDRs)
	if err != nil {
		return nil, err
	}
	sink := &Sink{name: s.Name, format: c.Format, now: time.Now, bearer: func() string { return "" }}
	if err := c.checkEndpoint(g); err != nil {
		return nil, err
	}
	parse := func(text []byte) (*endpoint, error) { return c.parseEndpointFile(text, g) }
	if sink.endpoint, err = follow(c.URL, c.URLFile, parse, s.Log); err != nil {
		return nil, fmt.Errorf("url %w", err)
	}
	if _, err := c.authorization(); err != nil {
		return nil, err
	}
	if c.Bearer != "" || c.BearerFile != "" {
		if sink.bearer, err = follow(c.Bearer, c.BearerFile, parseBearer, s.Log); err != nil {
			return nil, fmt.Errorf("bearer %w", err)
		}
	}
	if sink.header, err = c.headers(); err != nil {
		return nil, err
	}
	through, err := c.parsedProxy()
	if err != nil {
		return nil, err
	}
	if c.Format == formatTemplate {
		source := c.template()
		if sink.template, err = source.Open(s.Log); err != nil {
			return nil, err
		}
		sink.judge = source.Judge
	}
	sink.hidden = hiddenTexts(sink.header, through)
	sink.operators = make(map[string]bool, len(sink.header))
	for name := range sink.header {
		sink.operators[name] = true
	}
	ourHeaders(sink.header, s.UserAgent, c.contentType())
	if sink.transports, err = newTransports(c, s.Log, base, builder(g, through)); err != nil {
		return nil, err
	}
	if sink.secrets, err = newSecrets(c, s.Log, time.Now); err != nil {
		return nil, err
	}
	return sink, nil
}

// ourHeaders adds what the operator did not set.
func ourHeaders(h http.Header, userAgent, contentType string) {
	if userAgent == "" {
		userAgent = "hubrelay"
	}
	for name, value := range map[string]string{"Content-Type": contentType, "User-Agent": userAgent} {
		if h[name] == nil {
			h[name] = []string{value}
		}
	}
}

// builder returns what makes a transport. Without a proxy each address is judged as it is dialled, with one before the
// proxy is asked for it; neither asks a proxy that the environment names.
func builder(g *guard.Guard, through *url.URL) func(*tls.Config, *x509.CertPool) *egress.Transport {
	return func(c *tls.Config, roots *x509.CertPool) *egress.Transport {
		t := egress.NewTransport(g, c)
		if through != nil {
			p := &proxy{url: through, guard: g, resolver: net.DefaultResolver, roots: roots}
			t.DialContext = p.DialContext
		}
		return t
	}
}

// heading is what requests have in common while neither the endpoint nor the bearer token changes.
type heading struct {
	to    *endpoint
	token string
	*egress.Head
}

// current returns the heading of a request that is made now.
func (s *Sink) current() *heading {
	to, token := s.endpoint(), s.bearer()
	if h := s.heading.Load(); h != nil && h.to == to && h.token == token {
		return h
	}
	header := maps.Clone(s.header)
	if to.basic != "" {
		header["Authorization"] = []string{to.basic}
	} else if token != "" {
		header["Authorization"] = []string{"Bearer " + token}
	}
	// Written in lower case as Standard Webhooks spells them, for receivers that compare byte for byte.
	h := &heading{to, token, egress.NewHead(to.url, header, "webhook-id", "webhook-timestamp", "webhook-signature")}
	s.heading.Store(h)
	return h
}

// Deliver posts d once. It refuses a delivery of several notifications that is neither digest nor batch.
func (s *Sink) Deliver(ctx context.Context, d relay.Delivery) error {
	h := s.current()
	p, err := s.post(ctx, h, d)
	if err != nil {
		return err
	}
	resp, err := s.transports.current().Post(ctx, p)
	if err != nil {
		return s.networkError(ctx, h, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		relay.Answered(ctx, resp.StatusCode)
		// The receiver has taken it; whatever happens to the rest of the answer changes nothing.
		if resp.Body != http.NoBody {
			_, _ = io.CopyN(io.Discard, resp.Body, keptAnswer+drainedAnswer)
		}
		return nil
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		// Its body is the bare connection, and reading that would not end with ctx.
		return fmt.Errorf("post to %s: %w", h.to.Host(), &relay.AnswerError{Status: resp.StatusCode})
	}
	return s.outcome(h, resp)
}

// post is what Deliver sends for d.
func (s *Sink) post(ctx context.Context, h *heading, d relay.Delivery) (*egress.Post, error) {
	payload, err := s.body(ctx, d)
	if err != nil {
		return nil, err
	}
	now := s.now().Unix()
	values := []string{d.ID, strconv.FormatInt(now, 10), ""}
	if keys := s.secrets.current(); len(keys) > 0 {
		values[2] = sign(keys, d.ID, now, payload)
	}
	return &egress.Post{Head: h.Head, Values: values, Body: payload}, nil
}

// outcome says what an answer other than 2xx means.
func (s *Sink) outcome(h *heading, resp *http.Response) error {
	kept, _ := h.to.ReadAnswer(resp.Body, s.secretsOf(h)...)
	err := fmt.Errorf("post to %s: %w", h.to.Host(), &relay.AnswerError{Status: resp.StatusCode, Body: kept})
	switch resp.StatusCode {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return relay.Permanent(err)
	case http.StatusGone:
		return relay.Gone(err)
	}
	if wait, ok := egress.RetryAfter(resp.Header, s.now()); ok {
		return relay.RetryAfter(err, wait)
	}
	return err
}

// networkError names the host and nothing else of the URL, and no header.
func (s *Sink) networkError(ctx context.Context, h *heading, err error) error {
	err = h.to.Error(ctx, err)
	if dial := (*net.OpError)(nil); errors.As(err, &dial) && dial.Op == "dial" {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, io.EOF) {
		return err // in words of ours
	}
	text := err.Error()
	if slices.ContainsFunc(s.secretsOf(h), func(part string) bool { return len(part) >= shortestHidden && strings.Contains(text, part) }) {
		return fmt.Errorf("post to %s: the connection failed (details left out, since they repeat a secret)", h.to.Host())
	}
	return err
}

// secretsOf are the secrets besides the URL's that a request was sent with, for what repeats it. The bearer token may be
// another by now.
func (s *Sink) secretsOf(h *heading) []string {
	texts := slices.Clone(s.hidden)
	if _, basic, ok := strings.Cut(h.to.basic, " "); ok {
		texts = append(texts, basic)
	} else if h.token != "" {
		texts = append(texts, h.token)
	}
	return texts
}

// hiddenTexts are the values of the operator's headers, and who we are to the proxy.
func hiddenTexts(h http.Header, through *url.URL) []string {
	var texts []string
	for _, values := range h {
		texts = append(texts, values...)
		for _, v := range values {
			texts = append(texts, strings.Fields(v)...) // "Bearer" and the token alone
		}
	}
	if through != nil && through.User != nil {
		password, _ := through.User.Password()
		texts = append(texts, password)
	}
	slices.SortFunc(texts, func(a, b string) int { return len(b) - len(a) })
	return slices.DeleteFunc(texts, func(t string) bool { return len(t) < shortestHidden || t == "Bearer" || t == "Basic" })
}

// Close closes idle connections. It may be called twice.
func (s *Sink) Close() error {
	s.transports.close()
	return nil
}
