package webhook

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
)

// hiddenValue replaces the value of a header that may be a credential.
const hiddenValue = "(hidden)"

// Preview returns the request that Deliver would send now, with valid signatures and the current time. It hides the
// path and query of the URL and the values of the operator's headers, because they may be credentials. It shows the
// uncompressed body with the length that is sent.
func (s *Sink) Preview(ctx context.Context, d relay.Delivery) (relay.Preview, error) {
	token := s.bearer()
	if s.tokens != nil {
		token = hiddenValue // none is fetched for this, and its value would not be shown
	}
	p, payload, err := s.buildRequest(ctx, s.currentHead(token, d), d)
	if err != nil {
		return relay.Preview{}, err
	}
	req := p.ToHTTP(ctx)
	e := relay.Preview{Method: req.Method, Target: req.URL.Scheme + "://" + req.URL.Host + "/", Payload: payload}
	if strings.Trim(req.URL.EscapedPath(), "/") != "" || req.URL.RawQuery != "" {
		e.Target += "…"
	}
	e.Headers = append(e.Headers, relay.Header{Name: "Host", Value: req.Host})
	for _, name := range slices.Sorted(maps.Keys(req.Header)) {
		for _, value := range req.Header[name] {
			if !isOwnHeader(name) || s.operatorHeaders[name] {
				value = hiddenValue
			}
			e.Headers = append(e.Headers, relay.Header{Name: name, Value: value})
		}
	}
	e.Headers = append(e.Headers, relay.Header{Name: "Content-Length", Value: strconv.Itoa(len(p.Body))})
	return e, nil
}

// isOwnHeader reports whether the sink generates the value.
func isOwnHeader(name string) bool {
	switch strings.ToLower(name) {
	case "content-type", "user-agent", "ce-specversion":
		return true
	}
	return slices.Contains(deliveryHeaders[:], name) || slices.Contains(binaryNames[:], name)
}
