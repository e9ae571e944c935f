package notify

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
)

// Explain shows what each destination would be asked: shoutrrr makes the requests, and nobody gets them. Parts of a destination's
// URL are hidden wherever they are. It needs no Start, and is not called beside Deliver.
func (s *Sink) Explain(d relay.Delivery) (relay.Explanation, error) {
	destinations, err := s.config.parseDestinations()
	if err != nil {
		return relay.Explanation{}, err
	}
	title, text, err := s.buildText(d)
	if err != nil {
		return relay.Explanation{}, err
	}
	var list []relay.Explanation
	for _, to := range destinations {
		seen := &recorder{to: to}
		next := s.transport.setNext(seen)
		s.transport.beginAttempt(&attempt{ctx: context.Background()})
		err := to.send(s.transport, title, text)
		s.transport.endAttempt()
		s.transport.setNext(next)
		if len(seen.requests) == 0 {
			return relay.Explanation{}, fmt.Errorf("%s (%s) would not be asked: %s", to.url.Scheme, to.name, to.redact(fmt.Sprint(err)))
		}
		list = append(list, seen.requests...) // what came of them does not matter
	}
	list[0].Followups = list[1:]
	return list[0], nil
}

// recorder notes requests in place of making them.
type recorder struct {
	to       destination
	requests []relay.Explanation
}

// welcome has what services look for before they ask for more: Matrix, which asks how to log in, and Telegram for the next chat.
const welcome = `{"ok":true,"result":{"message_id":1,"chat":{"id":1,"type":"private"}},"flows":[{"type":"m.login.password"}],` +
	`"access_token":"…","room_id":"!1:example.com","event_id":"$1"}`

// RoundTrip notes a request.
func (r *recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	shown := relay.Explanation{
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
			value = "…"
		}
		shown.Headers = append(shown.Headers, relay.Header{Name: name, Value: value})
	}
	r.requests = append(r.requests, shown)
	return &http.Response{
		StatusCode: http.StatusOK, Status: "200 OK", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: request,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader([]byte(welcome))), ContentLength: int64(len(welcome)),
	}, nil
}
