package webhook

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/sinks/sinktest"
)

const traceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// traced is a notification with a trace and a subject that no header can hold as it is.
func traced() relay.Delivery {
	d := sinktest.Sample("65f0c2a00123456789abcdef")
	d.Notifications[0].Data = []byte(`{"topic":"container.created","object":{"id":"ü \"x\" 100%","n":1.50},` +
		`"context":{"hub_id":"hub1","containers":[]},"flags":null,` +
		`"traceparent":"` + traceParent + `","tracestate":"a=1"}`)
	return d
}

func eventSink(t *testing.T, format string) (*Sink, func() (*http.Request, []byte)) {
	t.Helper()
	srv, last := capture(t, nil)
	return openTest(t, &Config{
		URL: srv.URL, Format: format, Secrets: []string{secretA},
		CloudEvents: CloudEvents{Source: "https://hub.example.com/", TypePrefix: "com.example."},
	}), last
}

func TestStructuredEvent(t *testing.T) {
	t.Parallel()
	s, last := eventSink(t, formatStructured)
	d := traced()
	if err := s.Deliver(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	r, body := last()
	want := `{"specversion":"1.0","id":"65f0c2a00123456789abcdef","source":"https://hub.example.com/hubs/hub1",` +
		`"type":"com.example.container.created",` +
		`"subject":"ü \"x\" 100%","datacontenttype":"application/json","time":"2024-03-12T21:01:20Z","data":` +
		string(d.Notifications[0].Data) +
		`,"accountid":"acc1","hubid":"hub1","traceparent":"` + traceParent + `","tracestate":"a=1"}`
	if string(body) != want {
		t.Errorf("body\n%s, want\n%s", body, want)
	}
	var e event.Event
	if err := json.Unmarshal(body, &e); err != nil || e.Validate() != nil {
		t.Errorf("%v, %v", err, e.Validate())
	}
	if r.Header.Get("Content-Type") != "application/cloudevents+json" || r.Header.Get("traceparent") != traceParent ||
		r.Header.Get("tracestate") != "a=1" || !verify(t, secretA, r.Header, body) {
		t.Errorf("headers %v", r.Header)
	}
}

func TestBinaryEvent(t *testing.T) {
	t.Parallel()
	s, last := eventSink(t, formatBinary)
	d := traced()
	if err := s.Deliver(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	r, body := last()
	if string(body) != string(d.Notifications[0].Data) || !verify(t, secretA, r.Header, body) {
		t.Errorf("body %s", body)
	}
	for name, want := range map[string]string{
		"Content-Type": "application/json", "ce-specversion": "1.0", "ce-id": d.ID,
		"ce-source": "https://hub.example.com/hubs/hub1",
		"ce-type":   "com.example.container.created", "ce-subject": "%C3%BC%20%22x%22%20100%25",
		"ce-time": "2024-03-12T21:01:20Z", "ce-hubid": "hub1",
		"ce-accountid": "acc1", "ce-traceparent": traceParent, "traceparent": traceParent,
	} {
		if got := r.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// A batch that was sealed before the format became binary is sent in the batched mode.
func TestBatchInBinaryFormat(t *testing.T) {
	t.Parallel()
	s, last := eventSink(t, formatBinary)
	for range 2 { // the heading of one is not that of the other
		if err := s.Deliver(t.Context(), traced()); err != nil {
			t.Fatal(err)
		}
		if r, _ := last(); r.Header.Get("ce-id") != traced().ID || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("one: %v", r.Header)
		}
		if err := s.Deliver(t.Context(), batched()); err != nil {
			t.Fatal(err)
		}
		r, body := last()
		var list []plainEvent
		if err := json.Unmarshal(body, &list); err != nil || len(list) != 3 ||
			r.Header.Get("Content-Type") != contentBatch || !verify(t, secretA, r.Header, body) {
			t.Fatalf("a batch: %s: %v, %v", body, err, r.Header)
		}
		for i, n := range batched().Notifications {
			if list[i].ID != n.ID || string(list[i].Data) != string(n.Data) {
				t.Errorf("event %d is %v", i, list[i])
			}
		}
		for name := range r.Header {
			if strings.HasPrefix(strings.ToLower(name), "ce-") {
				t.Errorf("a batch has the header %s", name)
			}
		}
	}
	e, err := s.Preview(t.Context(), batched())
	if err != nil || !strings.HasPrefix(string(e.Payload), `[{"specversion"`) {
		t.Errorf("explained as %s, %v", e.Payload, err)
	}
	alone := batched()
	alone.Notifications = alone.Notifications[:1]
	if err := s.Deliver(t.Context(), alone); err != nil {
		t.Fatal(err)
	}
	if r, body := last(); r.Header.Get("ce-id") != alone.ID || string(body) != string(alone.Notifications[0].Data) {
		t.Errorf("a batch of one: %s, %v", body, r.Header)
	}
}

// plainEvent is an event by its specification. The SDK itself trips over numbers such as 1e400.
type plainEvent struct {
	SpecVersion, ID, Source, Type string
	Data                          json.RawMessage
}

func TestEventsOfSeveral(t *testing.T) {
	t.Parallel()
	s, last := eventSink(t, formatStructured)
	if err := s.Deliver(t.Context(), gathered()); err != nil {
		t.Fatal(err)
	}
	_, body := last()
	var e plainEvent
	if err := json.Unmarshal(body, &e); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	want, _, err := gathered().DigestJSON()
	if err != nil || e.Type != relay.TopicDigest || e.ID != gathered().ID ||
		e.Source != "https://hub.example.com/hubs/hub1" || string(e.Data) != string(want) {
		t.Errorf("%v (%v)", e, err)
	}
	if err := s.Deliver(t.Context(), batched()); err != nil {
		t.Fatal(err)
	}
	r, body := last()
	var list []plainEvent
	if err := json.Unmarshal(body, &list); err != nil || len(list) != 3 ||
		r.Header.Get("Content-Type") != contentBatch || r.Header.Get("webhook-id") != batched().ID {
		t.Fatalf("%s: %v, %v", body, err, r.Header)
	}
	for i, n := range batched().Notifications {
		if list[i].ID != n.ID || string(list[i].Data) != string(n.Data) || list[i].SpecVersion != "1.0" {
			t.Errorf("event %d is %v", i, list[i])
		}
	}
	// The heading of one is not that of the other.
	if err := s.Deliver(t.Context(), traced()); err != nil {
		t.Fatal(err)
	}
	if r, _ := last(); r.Header.Get("Content-Type") != contentStructured {
		t.Errorf("%v", r.Header)
	}
}

func TestEventConformance(t *testing.T) {
	t.Parallel()
	for _, format := range []string{formatStructured, formatBinary} {
		t.Run(format, func(t *testing.T) {
			sinktest.Run(t, sinktest.Harness{
				Batches: true, RetryAfter: 2 * 60e9,
				Secrets: []string{secretA, "s3cretclient"}, Open: func(t *testing.T, b sinktest.Behavior) (relay.Sink,
					func() []string,
				) {
					f := &far{behavior: b, done: make(chan struct{})}
					srv := httptest.NewServer(f)
					t.Cleanup(func() { close(f.done); srv.Close() })
					if b == sinktest.Unreachable {
						_ = srv.Listener.Close()
					}
					s := openTest(t, &Config{
						URL: srv.URL, Format: format, Secrets: []string{secretA}, Compression: Compression{
							Enabled: true, MinSize: 100,
						},
						OAuth2: newEndpoint(t, nil).config(),
					})
					return s, func() []string {
						f.mu.Lock()
						defer f.mu.Unlock()
						return append([]string(nil),
							f.ids...)
					}
				},
			})
		})
	}
}

// A trace is a header of every format, and nothing without one.
func TestTraceHeaders(t *testing.T) {
	t.Parallel()
	srv, last := capture(t, nil)
	s := openTest(t, &Config{URL: srv.URL})
	for d, want := range map[*relay.Delivery]string{
		{ID: "a", Notifications: traced().Notifications}:             traceParent,
		{ID: "b", Notifications: sinktest.Sample("b").Notifications}: "",
	} {
		if err := s.Deliver(t.Context(), *d); err != nil {
			t.Fatal(err)
		}
		if r, _ := last(); r.Header.Get("traceparent") != want {
			t.Errorf("%v", r.Header)
		}
	}
	own := openTest(t, &Config{URL: srv.URL, Headers: map[string]string{"traceparent": "mine"}})
	if err := own.Deliver(t.Context(), traced()); err != nil {
		t.Fatal(err)
	}
	if r, _ := last(); len(r.Header["Traceparent"]) != 1 || r.Header.Get("traceparent") != "mine" {
		t.Errorf("%v", r.Header)
	}
}

func TestFormatMistakes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		c    Config
		want string
	}{
		"unknown":   {Config{Format: "cloudevents"}, "format is unknown"},
		"no effect": {Config{CloudEvents: CloudEvents{Source: "https://a"}}, "cloudevents has no effect"},
		"metadata of CloudEvents": {
			Config{Format: formatStructured, Metadata: metadataAlways},
			"metadata has no effect on CloudEvents, which have id and time",
		},
		"a query": {
			Config{Format: formatBinary, CloudEvents: CloudEvents{Source: "https://a?b"}},
			"cloudevents.source is not a URI",
		},
		"a space": {
			Config{Format: formatBinary, CloudEvents: CloudEvents{TypePrefix: "a b"}},
			"cloudevents.type_prefix contains",
		},
		"a content type": {Config{
			Format: formatStructured, Headers: map[string]string{"content-type": "a/b"},
		}, "headers.content-type is set by"},
		"an attribute": {
			Config{Format: formatBinary, Headers: map[string]string{"Ce-Id": "7"}},
			"headers.Ce-Id is set by",
		},
		"a public key": {Config{Secrets: []string{"whpk_AAAA"}}, "secrets.0 is a public key"},
		"half a key":   {Config{Secrets: []string{"whsk_AAAA"}}, "secrets.0 has 3 bytes after whsk_"},
		"a size":       {Config{Compression: Compression{MinSize: 2 << 20}}, "compression.min_size is out of range"},
		"no token url": {Config{OAuth2: OAuth2{ClientID: "a", ClientSecret: "b"}}, "oauth2.token_url is missing"},
		"not public": {Config{
			OAuth2: OAuth2{TokenURL: "http://10.0.0.1/", ClientID: "a", ClientSecret: "b"},
		}, "oauth2.token_url is not allowed"},
		"no client": {
			Config{OAuth2: OAuth2{TokenURL: "https://a.example/", ClientSecret: "b"}},
			"oauth2.client_id is missing",
		},
		"no secret": {
			Config{OAuth2: OAuth2{TokenURL: "https://a.example/", ClientID: "a"}},
			"oauth2.client_secret is missing",
		},
		"two tokens": {Config{
			Bearer: "x", OAuth2: OAuth2{TokenURL: "https://a.example/", ClientID: "a", ClientSecret: "b"},
		}, "oauth2 conflicts with bearer"},
		"its own": {Config{
			OAuth2: OAuth2{
				TokenURL: "https://a.example/", ClientID: "a", ClientSecret: "b",
				Params: map[string]string{"grant_type": "x"},
			},
		}, "oauth2.params contains grant_type"},
	} {
		c.c.URL = "https://example.com/"
		if err := c.c.validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	if err := (&Config{Format: formatBinary}).checkBatch(); err == nil {
		t.Error("the binary mode takes a batch")
	}
}
