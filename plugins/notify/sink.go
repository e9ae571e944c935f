package notify

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/nicholas-fedor/shoutrrr/pkg/router"
	"github.com/nicholas-fedor/shoutrrr/pkg/services/chat/discord"
	"github.com/nicholas-fedor/shoutrrr/pkg/services/chat/mattermost"
	"github.com/nicholas-fedor/shoutrrr/pkg/services/push/gotify"
	"github.com/nicholas-fedor/shoutrrr/pkg/services/push/ntfy"
	"github.com/nicholas-fedor/shoutrrr/pkg/types"

	"github.com/hubrelay/hubrelay/internal/message"
	"github.com/hubrelay/hubrelay/internal/netguard"
	"github.com/hubrelay/hubrelay/internal/redact"
	"github.com/hubrelay/hubrelay/relay"
)

// maxRemembered is the number of deliveries whose successful destinations are remembered.
const maxRemembered = 4096

// resultReserve is the time of an attempt that is reserved for reporting its result to the daemon.
const resultReserve = 500 * time.Millisecond

// Sink sends messages to people. Deliver must not be called concurrently: shoutrrr passes no context, so a request can
// only be assigned to the attempt in progress.
type Sink struct {
	config    *Config
	transport *Transport
	summaries *message.Builder

	delivered      map[string][]string // destinations that have the message, by delivery ID
	deliveredOrder []string            // keys of delivered, oldest first
}

// destination is a URL with its key in the configuration, such as urls.0.
type destination struct {
	name    string
	url     *url.URL
	service service
}

// New returns a Sink for a configuration that must be filled in before Start. http.DefaultTransport must be set to its
// Transport.
func New(config *Config) *Sink {
	return &Sink{
		config: config, transport: &Transport{}, summaries: message.NewBuilder(), delivered: map[string][]string{},
	}
}

// Transport returns the transport for all HTTP requests of the process.
func (s *Sink) Transport() *Transport { return s.transport }

// Start reads the URL files and lets shoutrrr check all URLs. It sends no requests.
func (s *Sink) Start(context.Context) error {
	g, err := netguard.New(s.config.AllowCIDRs)
	if err != nil {
		return err
	}
	list, err := s.config.parseDestinations()
	if err != nil {
		return err
	}
	for _, to := range list {
		if _, err := to.openService(s.transport); err != nil &&
			!errors.Is(err, errNoAttempt) { // Matrix tries to log in
			return &relay.FieldError{
				Field:   to.name,
				Problem: fmt.Sprintf("is not a valid URL of %s: %s", to.url.Scheme, to.redact(err.Error())),
			}
		}
	}
	s.transport.mu.Lock()
	defer s.transport.mu.Unlock()
	if s.transport.next == nil {
		s.transport.next = guardedTransport(g)
	}
	return nil
}

// Deliver makes one attempt to send a delivery to each destination that does not have it.
func (s *Sink) Deliver(ctx context.Context, d relay.Delivery) error {
	list, err := s.config.parseDestinations()
	if err != nil {
		return err
	}
	title, text, err := s.buildText(d)
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(to destination) bool { return slices.Contains(s.delivered[d.ID], to.name) })
	var temporary, permanent []error
	var wait time.Duration
	for i, to := range list {
		err := s.sendTo(ctx, to, title, text, len(list)-i)
		outcome, after := relay.Classify(err)
		switch {
		case err == nil:
			s.markDelivered(d.ID, to.name)
		case outcome == relay.OutcomePermanent:
			permanent = append(permanent, err)
		default:
			temporary, wait = append(temporary, err), max(wait, after)
		}
	}
	switch {
	case len(temporary) > 0 && wait > 0:
		return relay.RetryAfter(errors.Join(temporary...), wait)
	case len(temporary) > 0:
		return errors.Join(temporary...)
	}
	return relay.Permanent(errors.Join(permanent...))
}

// buildText returns the title and the text of a delivery.
func (s *Sink) buildText(d relay.Delivery) (title, text string, err error) {
	if d.Batch {
		d = d.ToDigest() // one message is enough for people
	}
	page := s.summaries.Build(d)
	var b strings.Builder
	err = page.WriteText(&b)
	return page.Subject, b.String(), err
}

func (s *Sink) markDelivered(id, name string) {
	if _, exists := s.delivered[id]; !exists {
		if s.deliveredOrder = append(s.deliveredOrder, id); len(s.deliveredOrder) > maxRemembered {
			delete(s.delivered, s.deliveredOrder[0])
			s.deliveredOrder = s.deliveredOrder[1:]
		}
	}
	s.delivered[id] = append(s.delivered[id], name)
}

// sendTo makes one attempt at one destination. It gets an equal share of the remaining time with the other destinations
// in remaining.
func (s *Sink) sendTo(ctx context.Context, to destination, title, text string, remaining int) error {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		left := time.Until(deadline)
		left -= min(resultReserve, left/10)
		ctx, cancel = context.WithTimeout(ctx, left/time.Duration(remaining))
		defer cancel()
	}
	a := &attempt{ctx: ctx}
	s.transport.beginAttempt(a)
	defer s.transport.endAttempt()
	err := to.send(s.transport, title, text)
	return to.classifyAttempt(a, err)
}

// disableMarkup makes mentions and links with another text ineffective. Events contain texts of accounts.
var disableMarkup = strings.NewReplacer("@", "@\u200b", "](", "]\u200b(", "<", "<\u200b")

// send sends a message with shoutrrr.
func (d destination) send(transport http.RoundTripper, title, text string) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("shoutrrr panicked (%T)", v)
		}
	}()
	out, err := d.openService(transport)
	if err != nil {
		return err
	}
	if d.service.markup {
		title, text = disableMarkup.Replace(title), disableMarkup.Replace(text)
	}
	params := types.Params{}
	if d.service.hasTitle {
		params.SetTitle(relay.Truncate(title, 200))
	} else {
		text = title + "\n\n" + text
	}
	return out.Send(relay.Truncate(text, d.service.maxBytes), &params)
}

// openService creates the service for each attempt, so no state of an abandoned attempt is reused.
func (d destination) openService(transport http.RoundTripper) (types.Service, error) {
	out, err := (&router.ServiceRouter{}).NewService(d.url.Scheme)
	if err != nil {
		return nil, err
	}
	copied := *d.url
	if err := out.Initialize(&copied, nil); err != nil {
		return nil, err
	}
	// These do not use the default transport, or retry after a pause.
	switch service := out.(type) {
	case *ntfy.Service:
		service.SetHTTPClient(&http.Client{Transport: transport})
	case *gotify.Service:
		service.GetHTTPClient().Transport = transport
	case *mattermost.Service:
		service.GetHTTPClient().Transport = transport
	case *discord.Service:
		service.Sleeper = noSleep{}
	}
	return out, nil
}

type noSleep struct{}

func (noSleep) Sleep(time.Duration) {}

// classifyAttempt determines the outcome of an attempt from the response, which is more precise than the error of
// shoutrrr.
func (d destination) classifyAttempt(a *attempt, err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	newError := func(format string, args ...any) error {
		return errors.New(d.redact(fmt.Sprintf("%s (%s) ", d.url.Scheme, d.name) + fmt.Sprintf(format, args...)))
	}
	switch {
	case a.status != 0: // even if the time has ended since
		failed := newError("status %d: %s", a.status, relay.Truncate(d.redact(message.SingleLine(string(a.body))), 200))
		switch a.status {
		case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
			return relay.Permanent(failed)
		case http.StatusTooManyRequests:
			return relay.RetryAfter(failed, a.wait)
		}
		return failed
	case a.ctx.Err() != nil && (err != nil || !a.requested), errors.Is(a.err, context.DeadlineExceeded):
		return newError("did not respond in time")
	case a.err != nil:
		return newError("cannot be reached: %v", a.err)
	case err != nil && !a.requested:
		return relay.Permanent(newError("got no request: %v", err))
	case err != nil:
		return newError("rejected the message: %v", err)
	case !a.requested:
		return relay.Permanent(newError("got no request, and shoutrrr reported no error"))
	}
	return nil
}

// redact replaces all parts of the URL that may be secret.
func (d destination) redact(text string) string {
	secrets := []string{d.url.String(), d.url.User.Username(), d.url.Fragment}
	if password, ok := d.url.User.Password(); ok {
		secrets = append(secrets, password)
	}
	secrets = append(secrets, strings.Split(d.url.Path, "/")...)
	for _, values := range d.url.Query() {
		secrets = append(secrets, values...)
	}
	if !strings.Contains(d.url.Host, ".") && d.url.Host != d.url.Scheme {
		secrets = append(secrets, d.url.Host) // a token in the URLs of some services
	}
	return redact.New(secrets...).Text(text)
}
