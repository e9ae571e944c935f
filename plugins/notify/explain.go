package notify

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/hubrelay/hubrelay/internal/redact"
	"github.com/hubrelay/hubrelay/relay"
)

// Preview shows the requests to all destinations with the parts of their URLs redacted. shoutrrr makes the requests,
// but they are not sent. Explain does not need Start and must not run concurrently with Deliver.
func (s *Sink) Preview(d relay.Delivery) (relay.Preview, error) {
	destinations, err := s.config.parseDestinations()
	if err != nil {
		return relay.Preview{}, err
	}
	title, text, err := s.buildText(d)
	if err != nil {
		return relay.Preview{}, err
	}
	var list []relay.Preview
	for _, to := range destinations {
		recorded := &recorder{to: to}
		next := s.transport.setNext(recorded)
		s.transport.beginAttempt(&attempt{ctx: context.Background()})
		err := to.send(s.transport, title, text)
		s.transport.endAttempt()
		s.transport.setNext(next)
		if len(recorded.requests) == 0 {
			return relay.Preview{}, fmt.Errorf("%s (%s) would get no request: %s",
				to.url.Scheme, to.name, to.redact(fmt.Sprint(err)))
		}
		list = append(list, recorded.requests...) // err is about the simulated response
	}
	list[0].Followups = list[1:]
	return list[0], nil
}

// recorder is a transport that records requests instead of sending them.
type recorder struct {
	to       destination
	requests []relay.Preview
}

// simulatedResponse has what services need before their next request: Matrix reads login flows, and Telegram a result
// for each chat.
const simulatedResponse = `{"ok":true,"result":{"message_id":1,"chat":{"id":1,"type":"private"}},` +
	`"flows":[{"type":"m.login.password"}],"access_token":"…","room_id":"!1:example.com","event_id":"$1"}`

// RoundTrip implements http.RoundTripper.
func (r *recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	shown := relay.Preview{
		Method: request.Method, Target: r.to.redact(request.URL.Redacted()),
		Headers: []relay.Header{{Name: "destination", Value: fmt.Sprintf("%s (%s)", r.to.url.Scheme, r.to.name)}},
	}
	if request.Body != nil {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return nil, err
		}
		shown.Payload = []byte(r.to.redact(string(body)))
	}
	for _, name := range slices.Sorted(maps.Keys(request.Header)) {
		value := r.to.redact(strings.Join(request.Header[name], ", "))
		if name == "Authorization" || strings.Contains(name, "Token") || strings.Contains(name, "Key") {
			value = redact.Replacement
		}
		shown.Headers = append(shown.Headers, relay.Header{Name: name, Value: value})
	}
	r.requests = append(r.requests, shown)
	return &http.Response{
		StatusCode: http.StatusOK, Status: "200 OK", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: request,
		Header:        http.Header{"Content-Type": {"application/json"}},
		Body:          io.NopCloser(strings.NewReader(simulatedResponse)),
		ContentLength: int64(len(simulatedResponse)),
	}, nil
}
