package slack

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/hubrelay/hubrelay/relay"
)

// Preview returns the request that Deliver would send. It hides the path of the URL, which is the credential.
func (s *Sink) Preview(ctx context.Context, d relay.Delivery) (relay.Preview, error) {
	m, err := s.buildMessage(ctx, d)
	if err != nil {
		return relay.Preview{}, err
	}
	if s.app != nil {
		return s.app.previewRequest(d, m)
	}
	body, err := json.Marshal(m)
	if err != nil {
		return relay.Preview{}, fmt.Errorf("render delivery %s: %w", d.ID, err)
	}
	target := s.target()
	e := relay.Preview{Method: "POST", Target: target.URL().Scheme + "://" + target.Host() + "/…", Payload: body}
	e.Headers = append(e.Headers, relay.Header{Name: "Host", Value: target.Host()})
	for _, name := range slices.Sorted(maps.Keys(s.header)) {
		e.Headers = append(e.Headers, relay.Header{Name: name, Value: s.header.Get(name)})
	}
	e.Headers = append(e.Headers, relay.Header{Name: "Content-Length", Value: strconv.Itoa(len(body))})
	return e, nil
}
