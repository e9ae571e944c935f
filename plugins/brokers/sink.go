package brokers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/internal/filewatch"
	"github.com/hubrelay/hubrelay/internal/redact"
	"github.com/hubrelay/hubrelay/relay"
)

// An attempt ends a little before its deadline, because the daemon would report only a timeout after the deadline.
const (
	ackShare      = 10 // the reserve is 1/ackShare of the time, at most maxAckReserve
	maxAckReserve = 500 * time.Millisecond
)

// maxPublishing limits the calls of Publish in progress, including those whose attempt has ended. It bounds the memory
// that a hanging library uses.
const maxPublishing = 2048

// errorClassifier turns an error of a client library into one for operators, which is permanent if no attempt can
// succeed. It returns errors that it does not know unchanged.
type errorClassifier func(s *Sink, name string, err error) error

// Sink publishes deliveries to one broker. Deliver may be called concurrently.
type Sink struct {
	config *Config
	kind   brokerSpec
	name   nameTemplate
	broker *reconnector
	log    *slog.Logger
	slots  chan struct{}
	recent redact.Recent // passwords and tokens
}

// New returns a Sink for a configuration that must be filled in before Start.
func New(config *Config) *Sink {
	return &Sink{config: config, log: slog.New(slog.DiscardHandler), slots: make(chan struct{}, maxPublishing)}
}

// Start checks the files that the configuration names. The first delivery dials the broker, so Start succeeds when the
// broker is not available.
func (s *Sink) Start(ctx context.Context) error {
	if err := errors.Join(s.buildFromConfig(), s.CheckFiles(ctx)); err != nil {
		return err
	}
	s.log = slog.Default().With("broker", s.config.Broker)
	s.broker = newReconnector(s.kind.open(s), s.log)
	return nil
}

// buildFromConfig sets the fields that depend on the configuration.
func (s *Sink) buildFromConfig() (err error) {
	k, ok := brokerSpecs()[s.config.Broker]
	if !ok {
		return s.config.unknownBroker()
	}
	s.kind = k
	s.name, err = parseName(k.nameSetting, s.config.nameText(k), k.rule)
	return err
}

// CheckFiles reports all files of the configuration that cannot be used, joined. It does not dial.
func (s *Sink) CheckFiles(context.Context) error {
	_, passwordErr := s.readPassword()
	_, tlsErr := s.tlsConfig("")
	_, tokenErr := s.readToken()
	var credsErr error
	if s.config.CredsFile != "" {
		_, credsErr = readSecret("creds_file", s.config.CredsFile)
	}
	return errors.Join(passwordErr, tlsErr, tokenErr, credsErr)
}

// Stop closes the connection. Deliver must not be called after it.
func (s *Sink) Stop(ctx context.Context) error {
	if s.broker != nil {
		s.broker.close(ctx)
	}
	return nil
}

// Deliver makes one attempt to publish a delivery, and returns nil when the broker has acknowledged it. It publishes
// the notifications of a batch one after the other, in the order of the log, each as a message with its own ID.
func (s *Sink) Deliver(ctx context.Context, d relay.Delivery) error {
	if s.broker == nil {
		return errors.New("the plugin was not started")
	}
	ctx, cancel := withAckReserve(ctx)
	defer cancel()
	var permanent error
	for _, one := range splitBatch(d) {
		err := s.deliverMessage(ctx, one)
		outcome, _ := relay.Classify(err)
		switch {
		case err != nil && outcome != relay.OutcomePermanent:
			return err
		case err != nil && permanent == nil:
			permanent = err // the others are published anyway
		}
	}
	return permanent
}

// splitBatch returns one delivery per message.
func splitBatch(d relay.Delivery) []relay.Delivery {
	if !d.Batch {
		return []relay.Delivery{d}
	}
	list := make([]relay.Delivery, len(d.Notifications))
	for i := range d.Notifications {
		list[i] = relay.Delivery{ID: d.Notifications[i].ID, Attempt: d.Attempt, Notifications: d.Notifications[i : i+1]}
	}
	return list
}

// deliverMessage publishes a delivery that is one message.
func (s *Sink) deliverMessage(ctx context.Context, d relay.Delivery) error {
	m, v, err := newMessage(ctx, d)
	if err != nil {
		return relay.Permanent(err)
	}
	name, err := s.name.expand(v)
	if err != nil {
		return relay.Permanent(fmt.Errorf("%s: %w", s.config.Broker, err))
	}
	for range maxSends {
		var c brokerConn
		if c, err = s.broker.connection(ctx); err == nil {
			err = s.publish(ctx, c, name, m)
		}
		var resend *resendError
		if !errors.As(err, &resend) {
			break
		}
	}
	if err == nil {
		return nil
	}
	return s.operatorError(name, err)
}

// maxSends is the maximum number of times that an attempt sends a message. See [resendError].
const maxSends = 3

// withAckReserve returns a context that ends a little before ctx.
func withAckReserve(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-min(time.Until(deadline)/ackShare, maxAckReserve)))
}

var errNoAck = errors.New(
	"it did not acknowledge in time; it may have stored the message, and a repeat has the same ID")

// publish returns when the broker has acknowledged the message or ctx has ended. It needs a goroutine because some
// libraries ignore ctx.
func (s *Sink) publish(ctx context.Context, c brokerConn, name string, m *message.Message) error {
	if err := s.acquireSlot(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.SetContext(ctx)
	done := make(chan error, 1)
	go func() {
		defer func() { <-s.slots }()
		done <- c.Publish(name, m)
	}()
	err, late := await.Value(ctx, done)
	if late != nil || ctx.Err() != nil && isContextError(err) {
		return errNoAck
	}
	return err
}

func isContextError(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// acquireSlot waits while maxPublishing calls are in progress.
func (s *Sink) acquireSlot(ctx context.Context) error {
	select {
	case s.slots <- struct{}{}:
		return nil
	default:
	}
	select {
	case s.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the last %d messages are not acknowledged, so this one was not sent",
			maxPublishing)
	}
}

// operatorError returns an error that names the broker and contains no secret.
func (s *Sink) operatorError(name string, err error) error {
	classified := s.kind.classify(s, name, err)
	text := s.redact(classified.Error())
	if !strings.HasPrefix(text, s.config.Broker) {
		text = fmt.Sprintf("%s at %s: %s", s.config.Broker, strings.Join(s.config.hostPorts(), ", "), text)
	}
	plain := errors.New(text)
	if outcome, _ := relay.Classify(classified); outcome == relay.OutcomePermanent {
		return relay.Permanent(plain)
	}
	return plain
}

// userName describes the user in errors.
func (s *Sink) userName() string {
	if s.config.User == "" {
		return "a client without a user"
	}
	return "user " + strconv.Quote(s.config.User)
}

// maxErrorBytes is the maximum length of an error of a library.
const maxErrorBytes = 4 << 10

// redact removes secrets from the error of a library.
func (s *Sink) redact(text string) string {
	return s.recent.All().Prefix(text, maxErrorBytes)
}

// readPassword returns the content of the password file if there is one, otherwise the configured password.
func (s *Sink) readPassword() (string, error) {
	password, err := s.config.Password, error(nil)
	if s.config.PasswordFile != "" {
		password, err = readSecret("password_file", s.config.PasswordFile)
	}
	s.recent.Add(redact.New(password))
	return password, err
}

// readToken returns the token for NATS, or "" without a file.
func (s *Sink) readToken() (string, error) {
	if s.config.TokenFile == "" {
		return "", nil
	}
	token, err := readSecret("token_file", s.config.TokenFile)
	s.recent.Add(redact.New(token))
	return token, err
}

func readSecret(key, path string) (string, error) {
	data, err := filewatch.ReadFile(path)
	if err != nil {
		return "", fieldError(key, "%v", err)
	}
	text := strings.TrimRight(string(data), "\r\n")
	if text == "" {
		return "", fieldError(key, "names %s, which is empty", path)
	}
	return text, nil
}
