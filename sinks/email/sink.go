// Package email sends notifications as mail by SMTP, a digest as one message, in text and HTML.
//
// It makes one attempt and classifies the server's response. Retries, rates, digests and dead letters belong to
// relay/internal/delivery. It imports no other sink. go-mail provides the messages and the protocol. Connections are
// made here, so the guard checks each address when it is dialed.
package email

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net"
	"net/mail"
	"strconv"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/message"
	"github.com/hubrelay/hubrelay/internal/netguard"
	"github.com/hubrelay/hubrelay/internal/redact"
	"github.com/hubrelay/hubrelay/relay"
)

var (
	_ relay.Sink        = (*Sink)(nil)
	_ relay.SharedLimit = (*Sink)(nil)
	_ relay.Previewer   = (*Sink)(nil)
	_ relay.Config      = (*Config)(nil)
)

// Kind describes the sink type email.
func Kind() relay.SinkKind {
	return relay.SinkKind{
		Type:   "email",
		Config: func() relay.Config { return &Config{TLS: tlsStart, Auth: "plain"} },
		// Servers treat faster clients as spammers.
		Rate:           relay.Rate{Count: 30, Per: time.Minute},
		DigestOverRate: true,
		Open:           relay.OpenAs("email sink", open),
	}
}

// Sink sends mail through one server. Deliver may be called concurrently. Each call uses its own connection.
type Sink struct {
	config   *Config
	composer *composer
	dialer   *net.Dialer
	tls      *tls.Config
	password func() string
	recent   redact.Recent // passwords
	now      func() time.Time
}

func open(s relay.SinkSettings, c *Config) (*Sink, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	g, err := netguard.New(c.AllowCIDRs)
	if err != nil {
		return nil, err
	}
	roots, err := c.rootCAs()
	if err != nil {
		return nil, err
	}
	sink := &Sink{
		config: c, dialer: &net.Dialer{Control: g.Control}, now: time.Now,
		tls: &tls.Config{ServerName: c.Host, RootCAs: roots, MinVersion: tls.VersionTLS12},
	}
	if sink.password, err = c.passwordSetting().Open(s.Log, time.Now); err != nil {
		return nil, err
	}
	sink.composer, err = newComposer(s, c)
	return sink, err
}

// Deliver sends d as one mail.
func (s *Sink) Deliver(ctx context.Context, d relay.Delivery) error {
	message, err := s.composer.composeMessage(ctx, d, s.now())
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("send mail through %s: %w", s.config.Host, context.Cause(ctx))
	}
	if err := s.send(ctx, message); err != nil {
		return err
	}
	relay.ReportStatus(ctx, 250)
	return nil
}

// Preview returns the mail as it would be sent now.
func (s *Sink) Preview(ctx context.Context, d relay.Delivery) (relay.Preview, error) {
	message, err := s.composer.composeMessage(ctx, d, s.now())
	if err != nil {
		return relay.Preview{}, err
	}
	head, body, found := bytes.Cut(message, []byte("\r\n\r\n"))
	if !found {
		return relay.Preview{}, errors.New("the mail has no body")
	}
	e := relay.Preview{
		Method: "mail", Target: "smtp://" + net.JoinHostPort(s.config.Host, strconv.Itoa(s.config.serverPort())),
		Payload: body,
	}
	parsed, err := mail.ReadMessage(bytes.NewReader(message))
	if err != nil {
		return relay.Preview{}, fmt.Errorf("read the header of the mail: %w", err)
	}
	for line := range strings.SplitSeq(string(head), "\r\n") {
		name, _, isHeader := strings.Cut(line, ":")
		if isHeader && !strings.HasPrefix(line, " ") && !strings.HasPrefix(line, "\t") {
			e.Headers = append(e.Headers, relay.Header{Name: name, Value: parsed.Header.Get(name)})
		}
	}
	return e, nil
}

// RateKey identifies server and user, because mail servers limit the rate by both.
func (s *Sink) RateKey() string {
	return digestOf(net.JoinHostPort(s.config.Host, strconv.Itoa(s.config.serverPort())) + " " + s.config.Username)
}

// Close does nothing: each call of Deliver closes its connection.
func (s *Sink) Close() error { return nil }

func severityColor(s relay.Severity) string {
	switch s {
	case relay.SeverityBad:
		return "#d72b3f"
	case relay.SeverityGood:
		return "#2eb67d"
	case relay.SeverityChange:
		return "#2f81d6"
	}
	return "#8a8d91"
}

func writeHTML(w io.Writer, p *message.Summary) error { return htmlTemplate().Execute(w, p) }

// htmlTemplate is parsed for each mail, which costs less than sending it. html/template escapes the text of producers.
func htmlTemplate() *template.Template {
	return template.Must(template.New("mail").Funcs(template.FuncMap{"color": severityColor}).Parse(`<!DOCTYPE html>
<html><head><meta charset="utf-8"><title>{{.Subject}}</title></head>
<body style="font-family:sans-serif;font-size:14px">
{{define "rows"}}<table cellpadding="3" style="font-size:14px">{{range .}}<tr><td style="color:#666" valign="top">{{.Name}}</td><td>{{.Value}}</td></tr>
{{end}}</table>{{end -}}
{{if .Shared}}{{template "rows" .Shared}}{{end}}
{{range .Items}}<div style="border-left:4px solid {{color .Severity}};padding-left:8px;margin:8px 0"><b>{{.Title}}</b>
{{template "rows" .Rows}}</div>
{{end}}{{if .Omitted}}<p>and {{.Omitted}} more</p>
{{end}}<p style="color:#999;font-size:12px">Delivery: {{.ID}}</p>
</body></html>
`))
}
