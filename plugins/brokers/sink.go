package brokers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/hubrelay/hubrelay/relay"
)

// What of an attempt's time is kept for its answer, so that the daemon hears why it failed and not only that it took too long.
const (
	ackShare      = 10 // a tenth
	maxAckReserve = 500 * time.Millisecond
)

// maxPublishing bounds how many publishings are under way, those among them that nobody waits for any more: a library
// that hangs costs no more memory than that.
const maxPublishing = 2048

// errorClassifier says what follows from an error of the broker, and says it in the operator's words. It may return err as it is.
type errorClassifier func(s *Sink, where string, err error) error

// Sink publishes deliveries to one broker. Deliver may be called concurrently.
type Sink struct {
	config *Config
	kind   brokerSpec
	name   nameTemplate
	link   *reconnector
	log    *slog.Logger
	slots  chan struct{}
}

// New returns a Sink for a configuration that is filled in later, before Start. It does nothing yet.
func New(config *Config) *Sink {
	return &Sink{config: config, log: slog.New(slog.DiscardHandler), slots: make(chan struct{}, maxPublishing)}
}

// Start reads the files that the configuration names. The broker is dialled by the first delivery, so that one that is away at
// the start is the same as one that goes away later.
func (s *Sink) Start(ctx context.Context) error {
	if err := errors.Join(s.buildFromConfig(), s.CheckFiles(ctx)); err != nil {
		return err
	}
	s.log = slog.Default().With("broker", s.config.Broker)
	s.link = newLink(s.kind.open(s), s.log)
	return nil
}

// buildFromConfig takes from the configuration, which is filled in now, what deliveries need.
func (s *Sink) buildFromConfig() (err error) {
	k, ok := brokerSpecs()[s.config.Broker]
	if !ok {
		return s.config.unknownBroker()
	}
	s.kind = k
	s.name, err = parseName(k.nameSetting, s.config.nameText(k), k.rule)
	return err
}

// CheckFiles reports every file of the configuration that cannot be used, joined. It dials nobody.
func (s *Sink) CheckFiles(context.Context) error {
	_, err := s.readPassword()
	_, bad := s.tlsConfig("")
	errs := []error{err, bad}
	for _, f := range []struct{ key, path string }{{"token_file", s.config.TokenFile}, {"creds_file", s.config.CredsFile}} {
		if f.path != "" {
			_, err := readSecret(f.key, f.path)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Stop closes the connection. Nothing is delivered afterwards.
func (s *Sink) Stop(ctx context.Context) error {
	if s.link != nil {
		s.link.close(ctx)
	}
	return nil
}

// Deliver publishes a delivery and returns nil once the broker has acknowledged it. It makes one attempt. Of a batch each
// notification is a message of its own, under its own id, one after the other in the order of the log.
func (s *Sink) Deliver(ctx context.Context, d relay.Delivery) error {
	if s.link == nil {
		return errors.New("the plugin was not started")
	}
	ctx, cancel := withAnswerTime(ctx)
	defer cancel()
	var impossible error
	for _, one := range splitBatch(d) {
		err := s.deliver(ctx, one)
		outcome, _ := relay.Classify(err)
		switch {
		case err != nil && outcome != relay.OutcomePermanent:
			return err
		case err != nil && impossible == nil:
			impossible = err // the others can be published all the same
		}
	}
	return impossible
}

// splitBatch lists what becomes a message of its own.
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

// deliver publishes one message.
func (s *Sink) deliver(ctx context.Context, d relay.Delivery) error {
	m, v, err := newMessage(ctx, d)
	if err != nil {
		return relay.Permanent(err)
	}
	where, err := s.name.expand(v)
	if err != nil {
		return relay.Permanent(fmt.Errorf("%s: %w", s.config.Broker, err))
	}
	c, err := s.link.connection(ctx)
	if err == nil {
		err = s.publish(ctx, c, where, m)
	}
	if err == nil {
		return nil
	}
	return s.operatorError(where, err)
}

// withAnswerTime ends a little before ctx does.
func withAnswerTime(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-min(time.Until(deadline)/ackShare, maxAckReserve)))
}

var errNoAck = errors.New("it did not acknowledge in time; it may have the message all the same, and a repeat has the same id")

// publish returns when the broker has acknowledged, or ctx ends: not every library looks at it.
func (s *Sink) publish(ctx context.Context, c brokerConn, where string, m *message.Message) error {
	if err := s.acquireSlot(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.SetContext(ctx)
	done := make(chan error, 1)
	go func() {
		defer func() { <-s.slots }()
		done <- c.Publish(where, m)
	}()
	err, there := relay.Await(ctx, done)
	if !there || ctx.Err() != nil && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)) {
		return errNoAck
	}
	return err
}

// acquireSlot waits where as many publishings are under way as there may be.
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
		return fmt.Errorf("the broker has answered none of the last %d messages, and this one was not sent", maxPublishing)
	}
}

// operatorError makes an error of the operator's words: it names the broker, and holds no secret.
func (s *Sink) operatorError(where string, err error) error {
	judged := s.kind.classify(s, where, err)
	text := s.redact(judged.Error())
	if !strings.HasPrefix(text, s.config.Broker) {
		text = fmt.Sprintf("%s at %s: %s", s.config.Broker, strings.Join(s.config.hostPorts(), ", "), text)
	}
	plain := errors.New(text)
	if outcome, _ := relay.Classify(judged); outcome == relay.OutcomePermanent {
		return relay.Permanent(plain)
	}
	return plain
}

// userName is the user as errors name it.
func (s *Sink) userName() string {
	if s.config.User == "" {
		return "a client without a user"
	}
	return "user " + strconv.Quote(s.config.User)
}

// redact takes secrets out of what a library has said.
func (s *Sink) redact(text string) string {
	secret, _ := s.readPassword()
	for _, hidden := range []string{s.config.Password, secret, s.readToken()} {
		if len(hidden) > 2 {
			text = strings.ReplaceAll(text, hidden, "…")
		}
	}
	return text
}

// readPassword is the one of the file, where there is a file.
func (s *Sink) readPassword() (string, error) {
	if s.config.PasswordFile == "" {
		return s.config.Password, nil
	}
	return readSecret("password_file", s.config.PasswordFile)
}

// readToken is NATS' own.
func (s *Sink) readToken() string {
	if s.config.TokenFile == "" {
		return ""
	}
	token, _ := readSecret("token_file", s.config.TokenFile)
	return token
}

// maxSecret bounds what is read of a file.
const maxSecret = 1 << 20

func readSecret(key, path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fieldError(key, "cannot be read: %v", err)
	}
	if info.Size() > maxSecret {
		return "", fieldError(key, "names %s, which is larger than 1 MiB", path)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fieldError(key, "cannot be read: %v", err)
	}
	text := strings.TrimRight(string(data), "\r\n")
	if text == "" {
		return "", fieldError(key, "names %s, which is empty", path)
	}
	return text, nil
}
