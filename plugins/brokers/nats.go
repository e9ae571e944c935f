package brokers

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/hubrelay/hubrelay/relay"
)

var natsSubject = nameRule{
	maxBytes: 1024,
	allowed:  printableBut("*>"),
	check: func(text string) error {
		if strings.HasPrefix(text, "$") {
			return errors.New("subjects that begin with $ are the server's own")
		}
		for _, word := range strings.Split(text, ".") {
			if word == "" {
				return errors.New("a subject has no empty word: it neither begins nor ends with a dot, nor are there two in a row")
			}
		}
		return every(printableBut("*>"), "a subject has no white space, '*' or '>'")(text)
	},
}

// natsConnection publishes into streams: a subject that no stream takes is an error.
type natsConnection struct {
	cancelableLifetime
	conn *nats.Conn
	js   jetstream.JetStream
}

// openNATS leaves dialling again to the link, since the library would hold on to the password that it has.
func openNATS(s *Sink) opener {
	return func(ctx context.Context) (brokerConn, error) {
		c, shake := &natsConnection{cancelableLifetime: newMortal()}, &handshakeDialer{ctx: ctx}
		defer shake.keepOpen()
		options := []nats.Option{
			nats.Name("hubrelay"), nats.NoReconnect(), nats.NoCallbacksAfterClientClose(), nats.SetCustomDialer(shake),
			nats.ClosedHandler(func(*nats.Conn) { c.kill(nil) }), nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { c.kill(err) }),
			nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
			nats.Timeout(dialTime), nats.PingInterval(dialTime), nats.MaxPingsOutstanding(2),
		}
		secured, err := s.tlsConfig("")
		if err != nil {
			return nil, err
		}
		if secured != nil {
			options = append(options, nats.Secure(secured))
		}
		password, err := s.readPassword()
		if err != nil {
			return nil, err
		}
		switch {
		case s.config.User != "":
			options = append(options, nats.UserInfo(s.config.User, password))
		case s.config.TokenFile != "":
			options = append(options, nats.Token(s.readToken()))
		case s.config.CredsFile != "":
			options = append(options, nats.UserCredentials(s.config.CredsFile))
		}
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

// Publish waits until a stream has stored each message. The server knows repeats by Nats-Msg-Id, within the stream's window.
func (c *natsConnection) Publish(subject string, messages ...*message.Message) error {
	for _, m := range messages {
		_, err := c.js.PublishMsg(m.Context(), natsMessage(subject, m))
		if errors.Is(err, nats.ErrConnectionClosed) {
			return c.lossError(m.Context())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func natsMessage(subject string, m *message.Message) *nats.Msg {
	out := nats.NewMsg(subject)
	out.Data = m.Payload
	for key, value := range m.Metadata {
		out.Header.Set(key, strings.Map(oneLine, value))
	}
	out.Header.Set(jetstream.MsgIDHeader, m.UUID)
	return out
}

func showNATS(_ *Sink, subject string, m *message.Message) (relay.Explanation, error) {
	out, beside := natsMessage(subject, m), map[string]string{}
	for name := range out.Header {
		beside[name] = out.Header.Get(name)
	}
	return relay.Explanation{Headers: append([]relay.Header{{Name: "subject", Value: out.Subject}}, sortedHeaders(beside)...), Payload: out.Data}, nil
}

// oneLine keeps a value from being read as further headers.
func oneLine(r rune) rune {
	if r == '\r' || r == '\n' {
		return ' '
	}
	return r
}

// Close may be called twice.
func (c *natsConnection) Close() error {
	c.conn.Close()
	c.kill(nil)
	return nil
}

const (
	natsTooLarge = 10054 // message size exceeds maximum allowed
	natsFull     = 10077 // maximum messages, bytes or messages per subject exceeded
)

func judgeNATS(s *Sink, where string, err error) error {
	var api *jetstream.APIError
	switch {
	case errors.As(err, &api) && api.ErrorCode == natsTooLarge:
		return relay.Permanent(fmt.Errorf("nats: the message is larger than the stream of %q allows (max_msg_size)", where))
	case errors.As(err, &api) && api.ErrorCode == natsFull:
		return fmt.Errorf("nats: the stream of %q is full and takes no more (%s)", where, api.Description)
	case errors.Is(err, nats.ErrMaxPayload):
		return relay.Permanent(errors.New("nats: the message is larger than the server's max_payload: raise it, or have digests list less"))
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("nats: no stream takes the subject %q: add one (nats stream add hubrelay --subjects 'hubrelay.>'), or change subject", where)
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired):
		return fmt.Errorf("nats: the server refuses this login: correct user and password, token_file or creds_file")
	case errors.Is(err, nats.ErrPermissionViolation):
		return fmt.Errorf("nats: %s may not publish to %q", s.userName(), where)
	}
	return err
}
