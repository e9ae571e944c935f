package brokers

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/hubrelay/hubrelay/relay"
)

var natsSubject = nameRule{
	maxBytes: 1024,
	allowed:  printableExcept("*>"),
	check: func(text string) error {
		if strings.HasPrefix(text, "$") {
			return errors.New("subjects that begin with $ are reserved by the server")
		}
		for _, word := range strings.Split(text, ".") {
			if word == "" {
				return errors.New("a subject must not begin or end with a dot, or contain two dots in a row")
			}
		}
		return checkRunes(printableExcept("*>"), "a subject must not contain white space, '*' or '>'")(text)
	},
}

// natsConnection publishes to JetStream. It is an error if no stream has the subject.
type natsConnection struct {
	cancelableLifetime
	conn *nats.Conn
	js   jetstream.JetStream

	mu      sync.Mutex
	pending map[*natsPublish]struct{}
}

// natsPublish is a message without an acknowledgment.
type natsPublish struct {
	subject string
	cancel  context.CancelCauseFunc
}

// openNATS disables the reconnecting of the library, during which pending messages would wait for acknowledgments that
// were lost with the connection.
func openNATS(s *Sink) opener {
	return func(ctx context.Context) (brokerConn, error) {
		options, err := s.natsOptions()
		if err != nil {
			return nil, err
		}
		c := &natsConnection{cancelableLifetime: newLifetime(), pending: map[*natsPublish]struct{}{}}
		dialer := &handshakeDialer{ctx: ctx}
		defer dialer.keepOpen()
		options = append(options, nats.SetCustomDialer(dialer), nats.ErrorHandler(c.handleError),
			nats.ClosedHandler(func(*nats.Conn) { c.kill(nil) }),
			nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { c.kill(err) }))
		servers := make([]string, 0, len(s.config.Addresses))
		for _, host := range s.config.hostPorts() {
			servers = append(servers, "nats://"+host)
		}
		if c.conn, err = nats.Connect(strings.Join(servers, ","), options...); err != nil {
			return nil, err
		}
		if c.js, err = jetstream.New(c.conn); err != nil {
			c.conn.Close()
			return nil, err
		}
		return c, nil
	}
}

func (s *Sink) natsOptions() ([]nats.Option, error) {
	options := []nats.Option{
		nats.Name("hubrelay"), nats.NoReconnect(), nats.NoCallbacksAfterClientClose(),
		nats.Timeout(dialTimeout), nats.PingInterval(dialTimeout), nats.MaxPingsOutstanding(2),
	}
	tlsConfig, err := s.tlsConfig("")
	if err != nil {
		return nil, err
	}
	if tlsConfig != nil {
		options = append(options, nats.Secure(tlsConfig))
	}
	password, err := s.readPassword()
	if err != nil {
		return nil, err
	}
	switch {
	case s.config.User != "":
		options = append(options, nats.UserInfo(s.config.User, password))
	case s.config.TokenFile != "":
		token, err := s.readToken()
		if err != nil {
			return nil, err
		}
		options = append(options, nats.Token(token))
	case s.config.CredsFile != "":
		options = append(options, nats.UserCredentials(s.config.CredsFile))
	}
	return options, nil
}

// Publish waits until a stream has stored each message. Within the stream's duplicate window, the server ignores a
// repeated Nats-Msg-Id.
func (c *natsConnection) Publish(subject string, messages ...*message.Message) error {
	for _, m := range messages {
		if err := c.publish(subject, m); err != nil {
			return err
		}
	}
	return nil
}

func (c *natsConnection) publish(subject string, m *message.Message) error {
	ctx, cancel := context.WithCancelCause(m.Context())
	defer cancel(nil)
	p := &natsPublish{subject, cancel}
	c.mu.Lock()
	c.pending[p] = struct{}{}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.pending, p)
	}()
	_, err := c.js.PublishMsg(ctx, natsMessage(subject, m))
	switch {
	case errors.Is(err, nats.ErrConnectionClosed):
		return c.lossError(m.Context())
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}

// handleError fails the messages to a subject to which the user may not publish. The server names the subject in an error that
// belongs to no message.
func (c *natsConnection) handleError(_ *nats.Conn, _ *nats.Subscription, err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.pending {
		if strings.Contains(err.Error(), strconv.Quote(p.subject)) {
			p.cancel(err)
		}
	}
}

func natsMessage(subject string, m *message.Message) *nats.Msg {
	out := nats.NewMsg(subject)
	out.Data = m.Payload
	for key, value := range m.Metadata {
		out.Header.Set(key, strings.Map(replaceLineBreak, value))
	}
	out.Header.Set(jetstream.MsgIDHeader, m.UUID)
	return out
}

func explainNATS(_ *Sink, subject string, m *message.Message) (relay.Preview, error) {
	out, metadata := natsMessage(subject, m), map[string]string{}
	for name := range out.Header {
		metadata[name] = out.Header.Get(name)
	}
	headers := append([]relay.Header{{Name: "subject", Value: out.Subject}}, sortedHeaders(metadata)...)
	return relay.Preview{Headers: headers, Payload: out.Data}, nil
}

// replaceLineBreak prevents that the server parses a part of a value as another header.
func replaceLineBreak(r rune) rune {
	if r == '\r' || r == '\n' {
		return ' '
	}
	return r
}

// Close closes the connection. It may be called twice.
func (c *natsConnection) Close() error {
	c.conn.Close()
	c.kill(nil)
	return nil
}

const (
	natsTooLarge = 10054 // message size exceeds maximum allowed
	natsFull     = 10077 // maximum messages, bytes or messages per subject exceeded
)

func classifyNATS(s *Sink, subject string, err error) error {
	var api *jetstream.APIError
	switch {
	case errors.As(err, &api) && api.ErrorCode == natsTooLarge:
		return relay.Permanent(
			fmt.Errorf("nats: the message is larger than the stream of %q allows (max_msg_size)", subject))
	case errors.As(err, &api) && api.ErrorCode == natsFull:
		return fmt.Errorf("nats: the stream of %q is full (%s)", subject, api.Description)
	case errors.Is(err, nats.ErrMaxPayload):
		return relay.Permanent(errors.New("nats: the message is larger than the server's max_payload: raise it, " +
			"or make digests shorter"))
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("nats: no stream has the subject %q: "+
			"add one (nats stream add hubrelay --subjects 'hubrelay.>'), or change subject", subject)
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired):
		return errors.New("nats: the server rejects this login: correct user and password, token_file or creds_file")
	case errors.Is(err, nats.ErrPermissionViolation):
		return fmt.Errorf("nats: %s may not publish to %q", s.userName(), subject)
	}
	return err
}
