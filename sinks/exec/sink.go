// Package exec runs a command for each delivery, with the notification, the digest or the batch as JSON on its standard
// input.
//
// It makes one attempt and classifies the exit status: 0 is delivered, 65 (EX_DATAERR) is permanent, and anything else
// is retried. Retries, schedules, limits and dead letters belong to relay/internal/delivery. It imports no other sink.
// Programs and environments follow the rules of plugins.
package exec

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"github.com/hubrelay/hubrelay/internal/redact"
	"github.com/hubrelay/hubrelay/relay"
)

// dataError is EX_DATAERR of sysexits.h: the input is invalid, so another attempt would fail too.
const dataError = 65

var (
	_ relay.Sink      = (*Sink)(nil)
	_ relay.Previewer = (*Sink)(nil)
	_ relay.Config    = (*Config)(nil)
)

// Kind describes the sink type exec.
func Kind() relay.SinkKind {
	return relay.SinkKind{
		Type:    "exec",
		Config:  func() relay.Config { return &Config{Metadata: true} },
		Batches: true,
		Open:    relay.OpenAs("exec sink", open),
	}
}

func open(s relay.SinkSettings, c *Config) (*Sink, error) {
	c = c.withDir(s.Dir)
	if err := c.validate(); err != nil {
		return nil, err
	}
	sink := &Sink{name: s.Name, config: c}
	sink.env, sink.secrets = c.commandEnv()
	return sink, nil
}

// Sink runs a command for each delivery. Deliver may be called concurrently; then several commands run.
type Sink struct {
	name    string
	config  *Config
	env     []string
	secrets redact.Secrets // values of env
}

// Deliver runs the command once. When ctx ends, the command and the child processes in its process group receive SIGTERM, and
// SIGKILL a second later. The attempt has then failed, whatever the exit status.
func (s *Sink) Deliver(ctx context.Context, d relay.Delivery) error {
	payload, err := s.payload(d)
	if err != nil {
		return relay.Permanent(err)
	}
	program, args, err := s.config.resolveProgram()
	if err != nil {
		return err
	}
	dir := s.config.workDir()
	if err := checkDir(dir); err != nil {
		return err
	}
	r := &command{
		program: program, args: args, dir: dir, env: append(s.deliveryEnv(d), s.env...),
		input: append(append(make([]byte, 0, len(payload)+1), payload...), '\n'), output: newOutputHead(s.secrets),
	}
	state, err := r.execute(ctx)
	if err != nil {
		return err
	}
	status := state.ExitCode()
	if status == 0 {
		return nil
	}
	text := fmt.Sprintf("%s ended with status %d", program, status)
	if w, ok := state.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		status = 128 + int(w.Signal()) // like a shell
		text = fmt.Sprintf("%s was terminated by signal %d (%s)", program, int(w.Signal()), w.Signal())
	}
	err = &statusError{text, &relay.ResponseError{Status: status, Body: r.output.String()}}
	if status == dataError {
		return relay.Permanent(err)
	}
	return err
}

// statusError describes a response as the exit status of a command.
type statusError struct {
	text     string
	response *relay.ResponseError
}

func (e *statusError) Error() string { return e.text }
func (e *statusError) Unwrap() error { return e.response }

// deliveryEnv returns the variables that describe the delivery. A digest has its own topic, and the hub and account
// that all notifications share. A batch has the shared values of all three.
func (s *Sink) deliveryEnv(d relay.Delivery) []string {
	first := d.Notifications[0]
	topic, hub, account, count := first.Topic, first.Hub, first.Account, 1
	if d.Batch {
		count = len(d.Notifications)
		for _, n := range d.Notifications {
			topic, hub, account = sharedValue(topic, n.Topic), sharedValue(hub, n.Hub), sharedValue(account, n.Account)
		}
	}
	if d.Digest != nil {
		topic, count = relay.TopicDigest, max(d.Digest.Count, len(d.Notifications))
		if whole := count == len(d.Notifications); !whole {
			hub, account = d.Digest.Shared["hub"], ""
		}
		for _, n := range d.Notifications {
			hub, account = sharedValue(hub, n.Hub), sharedValue(account, n.Account)
		}
	}
	return []string{
		envVar("ID", d.ID), envVar("ATTEMPT", strconv.Itoa(d.Attempt)), envVar("SINK", s.name), envVar("TOPIC", topic),
		envVar("HUB", hub), envVar("ACCOUNT", account), envVar("COUNT", strconv.Itoa(count)),
	}
}

// sharedValue returns the value if both are equal, otherwise an empty string.
func sharedValue(a, b string) string {
	if a != b {
		return ""
	}
	return a
}

// longestValue is the maximum size of a value in bytes, far below the limits of operating systems.
const longestValue = 4 << 10

// envVar removes NUL bytes, which an environment cannot contain, and truncates long values.
func envVar(name, value string) string {
	return envPrefix + name + "=" + relay.Truncate(strings.ReplaceAll(value, "\x00", ""), longestValue)
}

// payload returns the input of the command without a final newline.
func (s *Sink) payload(d relay.Delivery) ([]byte, error) {
	if s.config.Metadata {
		d = d.WithMetadata()
	}
	return d.Payload()
}

// Preview returns the command, its input, and its environment as headers, without the configured values.
func (s *Sink) Preview(_ context.Context, d relay.Delivery) (relay.Preview, error) {
	payload, err := s.payload(d)
	if err != nil {
		return relay.Preview{}, err
	}
	e := relay.Preview{
		Method: "run", Target: strings.Join(s.config.Command, " "), Payload: append([]byte(nil), payload...),
	}
	e.Payload = append(e.Payload, '\n')
	for _, entry := range s.deliveryEnv(d) {
		name, value, _ := strings.Cut(entry, "=")
		e.Headers = append(e.Headers, relay.Header{Name: name, Value: value})
	}
	for _, entry := range s.env {
		name, value, _ := strings.Cut(entry, "=")
		if name != "PATH" {
			value = "(hidden)"
		}
		e.Headers = append(e.Headers, relay.Header{Name: name, Value: value})
	}
	return e, nil
}

// Close does nothing: each call of Deliver waits for its command.
func (s *Sink) Close() error { return nil }

// timeoutError describes a command that did not end by itself.
func timeoutError(ctx context.Context, program, what string) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, context.DeadlineExceeded) {
		return fmt.Errorf("%s did not end in time and %s: %w", program, what, cause)
	}
	return fmt.Errorf("%s %s: %w", program, what, cause)
}
