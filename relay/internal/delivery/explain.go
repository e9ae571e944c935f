package delivery

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/internal/durations"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/pipeline"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
)

// Explained describes how the relay would handle a notification at one sink.
type Explained struct {
	Sink    string `json:"sink"`
	Type    string `json:"type"`
	Matched bool   `json:"matched"`
	// Reason explains why the sink matches or does not match.
	Reason string `json:"reason"`
	// Timing contains causes of delay, one sentence each.
	Timing []string `json:"timing,omitempty"`
	// Request is the request that the sink would send. It is nil if the sink does not match or cannot show it.
	Request *ShownRequest `json:"request,omitempty"`
	// Error explains why Request cannot be shown. It is empty if it can.
	Error string `json:"error,omitempty"`
}

// ShownRequest is a request that is only shown.
type ShownRequest struct{ relay.Preview }

// MarshalJSON encodes the headers as an object, and the payload as text.
func (r ShownRequest) MarshalJSON() ([]byte, error) {
	headers := make(map[string]string, len(r.Headers))
	for _, h := range r.Headers {
		headers[h.Name] = h.Value
	}
	followups := make([]ShownRequest, len(r.Followups))
	for i, f := range r.Followups {
		followups[i].Preview = f
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // people read payloads such as <@U123>
	err := encoder.Encode(struct {
		Method    string            `json:"method"`
		Target    string            `json:"target"`
		Headers   map[string]string `json:"headers"`
		Payload   string            `json:"payload"`
		Note      string            `json:"note,omitempty"`
		Followups []ShownRequest    `json:"also,omitempty"`
	}{r.Method, r.Target, headers, string(r.Payload), r.Note, followups})
	return text.Bytes(), err
}

// Explain returns what the relay would do with n at a sink of the configuration. It opens the sink but sends
// nothing.
func Explain(
	ctx context.Context, cfg *config.Config, kinds []relay.SinkKind, version, sink string, n relay.Notification,
) (Explained, error) {
	c := cfg.Sinks[sink]
	e := Explained{Sink: sink, Type: c.Type}
	filter, err := newFilter(c)
	if err != nil {
		return e, err
	}
	if e.Matched, e.Reason = filter.Explain(n); !e.Matched {
		return e, nil
	}
	kind, err := findKind(kinds, c.Type)
	if err != nil {
		return e, fmt.Errorf("sink %s: %w", sink, err)
	}
	e.Timing = explainTiming(c, kind.DigestOverRate, n)
	opened, err := kind.Open(relay.SinkSettings{
		Name: sink, Dir: cfg.Dir(), Log: slog.New(slog.DiscardHandler), UserAgent: "hubrelay/" + version,
	}, c.Settings)
	if err != nil {
		e.Error = err.Error()
		return e, nil
	}
	defer func() { _ = opened.Close() }()
	previewer, ok := opened.(relay.Previewer)
	if !ok {
		return e, nil
	}
	request, err := previewer.Preview(ctx, deliveryFor(c, n))
	if err != nil {
		e.Error = err.Error()
		return e, nil
	}
	e.Request = &ShownRequest{request}
	return e, nil
}

// explainTiming returns one line for each reason why n may be sent later or together with others.
func explainTiming(cfg config.Sink, digestWhenLimited bool, n relay.Notification) []string {
	var lines []string
	digest, key := cfg.Digest, store.Ordering(cfg.Ordering).Key(n)
	if digest.Wait > 0 {
		text := "collected for " + durations.Format(digest.Wait)
		if len(digest.By) > 0 {
			text += " by " + strings.Join(digest.By, " and ")
		}
		lines = append(lines,
			text+" into a digest that lists up to "+strconv.Itoa(digest.Max)+"; shown as a digest of one")
	}
	if batch := cfg.Batch; batch.Wait > 0 {
		lines = append(lines, fmt.Sprintf("in batches of up to %d, which wait for %s at most unless full; shown "+
			"as a batch of one",
			batch.Max, durations.Format(batch.Wait)))
	}
	if cfg.Rate.Limited() {
		text := "at most " + cfg.Rate.String()
		if cfg.Burst > 0 {
			text += ", up to " + strconv.Itoa(cfg.Burst) + " at once after a pause"
		}
		if digestWhenLimited && digest.Wait == 0 && key == "" {
			text += "; events above the rate are combined into a digest"
		}
		lines = append(lines, text)
	}
	switch {
	case key == "":
	case strings.HasPrefix(key, "container:"):
		lines = append(lines, "in order of its container and account")
	case cfg.Ordering == string(store.OrderingContainer):
		lines = append(lines, "in order of its hub, because it concerns no container or several")
	default:
		lines = append(lines, "in order of its hub")
	}
	return lines
}

// deliveryFor returns the delivery of n, as a digest or batch of one notification if the sink is configured so.
func deliveryFor(cfg config.Sink, n relay.Notification) relay.Delivery {
	d := relay.Delivery{ID: n.ID, Attempt: 1, Notifications: []relay.Notification{n}}
	if cfg.Digest.Wait == 0 {
		d.Batch = cfg.Batch.Wait > 0
		return d
	}
	d.Digest = &relay.Digest{Count: 1, First: n.StoredAt(), Last: n.StoredAt(), Topics: map[string]int{n.Topic: 1}}
	if common := pipeline.SharedAttributes(n, cfg.Digest.By); len(common) > 0 {
		d.Digest.Shared = common
	}
	return d
}
