package notify

import (
	"context"
	"encoding/json"
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
	"github.com/hubrelay/hubrelay/relay"
)

// maxRemembered bounds of how many deliveries it is known who has them already.
const maxRemembered = 4096

// answerTime is kept of an attempt for its answer.
const answerTime = 500 * time.Millisecond

// Sink tells people. Deliver is called once at a time: shoutrrr knows no context, so that what it asks is told apart by time alone.
type Sink struct {
	config    *Config
	transport *Transport
	summaries *message.Builder

	delivered      map[string][]string // by delivery the destinations that have it
	deliveredOrder []string            // of has, the oldest first
}

// destination is a URL and how it is called.
type destination struct {
	name    string
	url     *url.URL
	service service
}

// New returns a Sink for a configuration that is filled in before Start. The process' http.DefaultTransport must be its Transport.
func New(config *Config) *Sink {
	return &Sink{config: config, transport: &Transport{}, summaries: message.NewBuilder(), delivered: map[string][]string{}}
}

// Transport is what all that the process asks by HTTP must go through.
func (s *Sink) Transport() *Transport { return s.transport }

// Start reads the files and has shoutrrr look at each URL. It asks nobody.
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
		if _, err := to.open(s.transport); err != nil && !errors.Is(err, errNoAttempt) { // Matrix logs in
			return &relay.FieldError{Field: to.name, Problem: fmt.Sprintf("is no good URL of %s: %s", to.url.Scheme, to.redact(err.Error()))}
		}
	}
	s.transport.mu.Lock()
	defer s.transport.mu.Unlock()
	if s.transport.next == nil {
		s.transport.next = guardedTransport(g)
	}
	return nil
}

// Deliver asks each destination once that has not got it yet.
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
	var again, never []error
	var wait time.Duration
	for i, to := range list {
		err := s.notify(ctx, to, title, text, len(list)-i)
		outcome, after := relay.Classify(err)
		switch {
		case err == nil:
			s.markDelivered(d.ID, to.name)
		case outcome == relay.OutcomePermanent:
			never = append(never, err)
		default:
			again, wait = append(again, err), max(wait, after)
		}
	}
	switch {
	case len(again) > 0 && wait > 0:
		return relay.RetryAfter(errors.Join(again...), wait)
	case len(again) > 0:
		return errors.Join(again...)
	}
	return relay.Permanent(errors.Join(never...))
}

// buildText makes the words of a delivery.
func (s *Sink) buildText(d relay.Delivery) (title, text string, err error) {
	if d.Batch {
		d = d.ToDigest() // people want one message
	}
	page := s.summaries.Build(d)
	var b strings.Builder
	err = page.WriteText(&b)
	return page.Subject, b.String(), err
}

func (s *Sink) markDelivered(id, name string) {
	if _, known := s.delivered[id]; !known {
		if s.deliveredOrder = append(s.deliveredOrder, id); len(s.deliveredOrder) > maxRemembered {
			delete(s.delivered, s.deliveredOrder[0])
			s.deliveredOrder = s.deliveredOrder[1:]
		}
	}
	s.delivered[id] = append(s.delivered[id], name)
}

// notify makes one attempt at one destination, in its share of the time.
func (s *Sink) notify(ctx context.Context, to destination, title, text string, share int) error {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		left := time.Until(deadline)
		left -= min(answerTime, left/10)
		ctx, cancel = context.WithTimeout(ctx, left/time.Duration(share))
		defer cancel()
	}
	a := &attempt{ctx: ctx}
	s.transport.beginAttempt(a)
	defer s.transport.endAttempt()
	err := to.send(s.transport, title, text)
	return to.classify(a, err)
}

// send has shoutrrr send.
func (to destination) send(transport http.RoundTripper, title, text string) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the library for it panicked (%T)", v)
		}
	}()
	out, err := to.open(transport)
	if err != nil {
		return err
	}
	params := types.Params{}
	if to.service.hasTitle {
		params.SetTitle(relay.Truncate(title, 200))
	} else {
		text = title + "\n\n" + text
	}
	text = relay.Truncate(text, to.service.maxBytes)
	if to.service.mentions {
		text = strings.ReplaceAll(text, "@", "@\u200b")
	}
	return out.Send(text, &params)
}

// open makes the service anew, so that nothing of an attempt that was left behind is used again.
func (to destination) open(transport http.RoundTripper) (types.Service, error) {
	out, err := (&router.ServiceRouter{}).NewService(to.url.Scheme)
	if err != nil {
		return nil, err
	}
	copied := *to.url
	if err := out.Initialize(&copied, nil); err != nil {
		return nil, err
	}
	// These have transports of their own, or repeat after a pause.
	switch own := out.(type) {
	case *ntfy.Service:
		own.SetHTTPClient(&http.Client{Transport: transport})
	case *gotify.Service:
		own.GetHTTPClient().Transport = transport
	case *mattermost.Service:
		own.GetHTTPClient().Transport = transport
	case *discord.Service:
		own.Sleeper = noSleep{}
	}
	return out, nil
}

type noSleep struct{}

func (noSleep) Sleep(time.Duration) {}

// classify says what follows from what was answered, which tells more than shoutrrr's error does.
func (to destination) classify(a *attempt, err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	say := func(format string, values ...any) error {
		return errors.New(to.redact(fmt.Sprintf("%s (%s) ", to.url.Scheme, to.name) + fmt.Sprintf(format, values...)))
	}
	switch {
	case a.status != 0: // also where the time has ended since
		failed := say("answered %d: %s", a.status, relay.Truncate(message.SingleLine(string(a.body)), 200))
		switch a.status {
		case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
			return relay.Permanent(failed)
		case http.StatusTooManyRequests:
			return relay.RetryAfter(failed, a.wait)
		}
		return failed
	case a.ctx.Err() != nil && (err != nil || !a.requested), errors.Is(a.err, context.DeadlineExceeded):
		return say("did not answer in time")
	case a.err != nil:
		return say("cannot be reached: %v", a.err)
	case err != nil && !a.requested:
		return relay.Permanent(say("was not asked: %v", err))
	case err != nil:
		return say("did not take it: %v", err)
	case !a.requested:
		return relay.Permanent(say("was not asked, and the library for it does not say why"))
	}
	return nil
}

// redact takes out of a text whatever in the URL may be a secret.
func (to destination) redact(text string) string {
	hide := []string{to.url.String(), to.url.User.Username(), to.url.Fragment}
	if password, ok := to.url.User.Password(); ok {
		hide = append(hide, password)
	}
	hide = append(hide, strings.Split(to.url.Path, "/")...)
	for _, values := range to.url.Query() {
		hide = append(hide, values...)
	}
	if !strings.Contains(to.url.Host, ".") && to.url.Host != to.url.Scheme {
		hide = append(hide, to.url.Host) // of some it is a token, not a host
	}
	var all []string
	for _, secret := range hide {
		if len(secret) >= 4 {
			all = append(all, encodings(secret)...)
		}
	}
	slices.SortFunc(all, func(a, b string) int { return len(b) - len(a) })
	for _, secret := range all {
		text = strings.ReplaceAll(text, secret, "…")
	}
	return text
}

// encodings are the ways in which a text stands in URLs, forms and JSON.
func encodings(text string) []string {
	var out strings.Builder
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	_ = e.Encode(text) // a text is always encoded
	inJSON := strings.TrimSuffix(out.String(), "\n")
	forHTML, _ := json.Marshal(text)
	return []string{
		text, url.PathEscape(text), url.QueryEscape(text), url.User(text).String(), (&url.URL{Path: "/" + text}).EscapedPath()[1:],
		inJSON[1 : len(inJSON)-1], string(forHTML[1 : len(forHTML)-1]),
	}
}
