package email

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/wneessen/go-mail/smtp"

	"github.com/hubrelay/hubrelay/internal/netdeadline"
	"github.com/hubrelay/hubrelay/internal/redact"
	"github.com/hubrelay/hubrelay/relay"
)

// maxServerReply is the maximum number of bytes from a server in one attempt. A line has no separate limit.
const maxServerReply = 256 << 10

// errTooMuch reports a reply longer than maxServerReply.
var errTooMuch = errors.New("the server sent more than 256 KiB, which no mail server does")

// boundedConn is a connection with a limit on the bytes read, which ends with a context.
type boundedConn struct {
	net.Conn
	left int
}

func (c *boundedConn) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, errTooMuch
	}
	n, err := c.Conn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// smtpStep is the step in which a server failed.
type smtpStep struct {
	name string
	// isMessageReply reports whether a reply in this step is about the message.
	isMessageReply bool
}

// send sends message over one connection. It returns nil once the server has accepted it.
func (s *Sink) send(ctx context.Context, message []byte) error {
	at := smtpStep{name: "connect to"}
	err := s.smtpSession(ctx, message, &at)
	if err == nil {
		return nil
	}
	return s.explainError(ctx, at, err)
}

func (s *Sink) smtpSession(ctx context.Context, message []byte, at *smtpStep) (err error) {
	address := net.JoinHostPort(s.config.Host, strconv.Itoa(s.config.serverPort()))
	raw, err := s.dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = raw.Close() }()
	stop := netdeadline.InterruptAfter(ctx, raw)
	defer stop()
	var conn net.Conn = &boundedConn{Conn: raw, left: maxServerReply}
	if s.config.TLS == tlsImplicit {
		*at = smtpStep{name: "start TLS with"}
		secure := tls.Client(conn, s.tls)
		if err := secure.HandshakeContext(ctx); err != nil {
			return err
		}
		conn = secure
	}
	*at = smtpStep{name: "read the greeting of"}
	c, err := smtp.NewClient(conn, s.config.Host)
	if err != nil {
		return err
	}
	if err := s.logIn(c, at); err != nil {
		return err
	}
	*at = smtpStep{"send the sender to", true}
	if err := c.Mail(s.composer.from.Address); err != nil {
		return err
	}
	for _, to := range slices.Concat(s.composer.to, s.composer.cc) {
		*at = smtpStep{"send the recipient " + to.Address + " to", true}
		if err := c.Rcpt(to.Address); err != nil {
			return err
		}
	}
	*at = smtpStep{"send the message to", true}
	w, err := c.Data()
	if err != nil {
		return err
	}
	if _, err := w.Write(message); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	_ = c.Quit() // the server has accepted the message, so an error changes nothing
	return nil
}

// logIn logs in with the configured method.
func (s *Sink) logIn(c *smtp.Client, at *smtpStep) error {
	*at = smtpStep{name: "greet"}
	name, err := os.Hostname()
	if err != nil || name == "" || strings.ContainsAny(name, " \r\n") {
		name = "localhost"
	}
	if err := c.Hello(name); err != nil {
		return err
	}
	if s.config.TLS == tlsStart {
		*at = smtpStep{name: "start TLS with"}
		if ok, _ := c.Extension("STARTTLS"); !ok {
			return errors.New(
				"the server does not offer STARTTLS, and mail is not sent unencrypted: use another port, or set tls " +
					"to tls, or to none if the network is safe",
			)
		}
		if err := c.StartTLS(s.tls); err != nil {
			return err
		}
	}
	if s.config.Username == "" {
		return nil
	}
	*at = smtpStep{name: "log in to"}
	password := s.password()
	s.recent.Add(redact.New(password))
	if s.config.Auth == "login" {
		return c.Auth(smtp.LoginAuth(s.config.Username, password, s.config.Host, false))
	}
	return c.Auth(smtp.PlainAuth("", s.config.Username, password, s.config.Host, false))
}

// explainError describes a failure and marks its outcome, which the reply decides if it is about the message.
func (s *Sink) explainError(ctx context.Context, at smtpStep, err error) error {
	host := s.config.Host
	cause := netdeadline.Cause(ctx, err)
	var said *textproto.Error
	switch {
	case errors.As(err, &said): // even if ctx has ended since
		rejected := fmt.Errorf("%s %s: %w", at.name, host, &relay.ResponseError{
			Status: said.Code, Body: s.redactPassword(said.Msg),
		})
		if at.isMessageReply && isPermanentCode(said.Code) {
			return relay.Permanent(rejected)
		}
		return rejected
	case ctx.Err() != nil && errors.Is(cause, context.DeadlineExceeded):
		return fmt.Errorf("%s %s: no reply in time: %w", at.name, host, cause)
	case ctx.Err() != nil:
		return fmt.Errorf("%s %s: %w", at.name, host, cause)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%s %s: the server closed the connection without a reply", at.name, host)
	}
	text := s.redactPassword(err.Error())
	if text != err.Error() {
		return fmt.Errorf("%s %s: %s", at.name, host, text)
	}
	return fmt.Errorf("%s %s: %w", at.name, host, err)
}

// isPermanentCode reports whether a reply means that this message will never be accepted. These 5xx are not about the
// message: mailbox full (552), bad sequence of commands (503), wrong or missing login, or TLS required (530, 535, 538).
func isPermanentCode(code int) bool {
	switch code {
	case 503, 530, 535, 538, 552:
		return false
	}
	return code >= 500 && code < 600
}

// redactPassword removes the password from a server's text and limits its length.
func (s *Sink) redactPassword(text string) string {
	secrets := s.recent.Add(redact.New(s.password())) // before the first login, the server may repeat an earlier one
	return relay.Truncate(secrets.Prefix(text, 1<<10+1), 1<<10)
}
