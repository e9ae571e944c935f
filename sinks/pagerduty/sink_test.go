package pagerduty

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/sinks/sinktest"
)

func TestMain(m *testing.M) {
	testkit.RunParallel(8) // the tests wait most of the time
	goleak.VerifyTestMain(m)
}

const key = "0123456789abcdefs3cretABCDEF4567"

// double simulates PagerDuty by the documentation of the Events API v2 (required fields, allowed values, limits,
// answers) and checks requests by it, because PagerDuty itself cannot be reached here.
type double struct {
	t        *testing.T
	behavior sinktest.Behavior
	mu       sync.Mutex
	events   []event
	done     chan struct{}
}

func (d *double) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var e event
	problem := ""
	if err := json.Unmarshal(body, &e); err != nil {
		problem = err.Error()
	}
	switch {
	case r.Method != http.MethodPost || r.URL.Path != "/v2/enqueue" ||
		r.Header.Get("Content-Type") != "application/json":
		problem = "not the call of the documentation"
	case e.RoutingKey != key:
		problem = "'routing_key' is invalid"
	case e.Action != "trigger" && e.Action != "resolve" || len(e.DedupKey) > 255 || e.DedupKey == "" ||
		len(body) > 512<<10:
		problem = "'event_action' or 'dedup_key' is invalid"
	case len(e.Links) > 0 &&
		(len(e.Links) > 1 || !strings.HasPrefix(e.Links[0].Href, "https://") || e.Links[0].Text == ""):
		problem = "'links' is invalid"
	case e.Payload != nil && len(e.Payload.Details) > 0 && e.Payload.Details[0] != '{':
		problem = "'custom_details' must be an object"
	case e.Action == "trigger" &&
		(e.Payload == nil || e.Payload.Summary == "" || len([]rune(e.Payload.Summary)) > 1024 ||
			e.Payload.Source == "" ||
			!strings.Contains(" critical error warning info ", " "+e.Payload.Severity+" ")):
		problem = "'payload' is invalid"
	}
	if problem != "" {
		d.t.Errorf("PagerDuty would refuse %.300s: %s", body, problem)
	}
	d.mu.Lock()
	d.events = append(d.events, e)
	d.mu.Unlock()
	switch d.behavior {
	case sinktest.Fail:
		w.WriteHeader(http.StatusInternalServerError)
	case sinktest.Throttle:
		w.Header().Set("Retry-After", "120")
		w.WriteHeader(http.StatusTooManyRequests)
	case sinktest.Reject:
		w.WriteHeader(http.StatusBadRequest)
		_, _ = fmt.Fprintf(w, `{"status":"invalid event","message":"Event object is invalid","errors":["%s"]}`,
			e.RoutingKey)
	case sinktest.Hang:
		<-d.done
	default:
		w.WriteHeader(http.StatusAccepted)
		_, _ = fmt.Fprintf(w, `{"status":"success","message":"Event processed","dedup_key":%q}`, e.DedupKey)
	}
}

func openTest(t *testing.T, b sinktest.Behavior) (*Sink, *double) {
	t.Helper()
	return openConfig(t, b, Config{})
}

// openConfig opens a sink of a double, with the templates of c.
func openConfig(t *testing.T, b sinktest.Behavior, c Config) (*Sink, *double) {
	t.Helper()
	return openLogged(t, b, c, testkit.Log(t))
}

func openLogged(t *testing.T, b sinktest.Behavior, c Config, log *slog.Logger) (*Sink, *double) {
	t.Helper()
	p := &double{t: t, behavior: b, done: make(chan struct{})}
	srv := httptest.NewServer(p)
	t.Cleanup(func() { close(p.done); srv.Close() })
	url := srv.URL + "/v2/enqueue"
	if b == sinktest.Unreachable {
		_ = srv.Listener.Close()
	}
	c.URL, c.RoutingKey, c.Severity, c.AllowCIDRs = url, key, "critical", []string{"127.0.0.0/8"}
	s, err := Kind().Open(relay.SinkSettings{Name: "test", Log: log, UserAgent: "hubrelay/test"}, &c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	sink, ok := s.(*Sink)
	if !ok {
		t.Fatalf("Open returned a %T", s)
	}
	return sink, p
}

func TestConformance(t *testing.T) {
	t.Parallel()
	sinktest.Run(t, sinktest.Harness{
		RetryAfter: 2 * time.Minute, Secrets: []string{key, "s3cret"},
		Skip: map[sinktest.Behavior]string{sinktest.Gone: "PagerDuty's documentation has no answer for it"},
		Open: func(t *testing.T, b sinktest.Behavior) (relay.Sink, func() []string) {
			s, p := openTest(t, b)
			return s, func() []string {
				p.mu.Lock()
				defer p.mu.Unlock()
				var ids []string
				for _, e := range p.events {
					ids = append(ids, e.DedupKey[strings.LastIndexByte(e.DedupKey, '/')+1:])
				}
				return ids
			}
		},
	})
}

func note(topic, object, containers string) relay.Delivery {
	data := fmt.Sprintf(
		`{"topic":%q,"object":%s,"context":{"hub_id":"h","clusters":["production"],"containers":%s},"flags":null}`,
		topic, object, containers,
	)
	return relay.Delivery{ID: "d", Attempt: 1, Notifications: []relay.Notification{{
		ID: "65f0c2a00000000000000001", Topic: topic, Hub: "h", Cursor: "1-0", Data: []byte(data),
	}}}
}

// What triggers an alert, what resolves it, and that both have one key.
func TestEvents(t *testing.T) {
	t.Parallel()
	const job, instance, container = "hubrelay/job/h//j1", "hubrelay/container.instance/h//i1", "hubrelay/container/h//c1"
	for _, c := range []struct {
		topic, object  string
		action, dedup  string
		severity, said string
	}{
		{
			"job.state.changed", `{"id":"j1","state":"error","error":"no room"}`, "trigger", job, "critical",
			"job.state.changed: error (j1): no room",
		},
		{"job.state.changed", `{"id":"j1","state":"completed"}`, "resolve", job, "", ""},
		{"job.state.changed", `{"id":"j1","state":"running"}`, "resolve", job, "", ""},
		{"job.state.changed", `{"id":"j1","state":"queued"}`, "", "", "", ""},
		{
			"container.instance.error", `{"id":"i1","error":"a\n b"}`, "trigger", instance, "critical",
			"container.instance.error (i1): a b",
		},
		{
			"container.instance.state.changed", `{"id":"i1","state":"failed"}`, "trigger", instance, "critical",
			"container.instance.state.changed: failed (i1)",
		},
		{
			"container.instance.health.status.changed", `{"id":"i1","state":"unhealthy"}`, "trigger", instance,
			"warning",
			"container.instance.health.status.changed: unhealthy (i1)",
		},
		{"container.instance.health.status.changed", `{"id":"i1","state":"healthy"}`, "resolve", instance, "", ""},
		{"container.instance.state.changed", `{"id":"i1","state":"running"}`, "resolve", instance, "", ""},
		{"container.error", `{"id":""}`, "trigger", container, "critical", "container.error"},
		{"container.state.changed", `{"id":"c1","state":"Running"}`, "resolve", container, "", ""},
		{"container.desired_state.changed", `{"id":"c1","state":"running"}`, "", "", "", ""},
		{"container.updated", `{"id":"c1"}`, "", "", "", ""},
		{
			"dns.certificate.error", `{"id":"x"}`, "trigger", "hubrelay/dns.certificate/h//x", "critical",
			"dns.certificate.error (x)",
		},
		{
			"dns.certificate.state.changed", `{"id":"x","state":"live"}`, "resolve", "hubrelay/dns.certificate/h//x", "",
			"",
		},
		{
			relay.TopicSinkDisabled, `{"id":"billing"}`, "trigger", "hubrelay/sink/h//billing", "critical",
			"hubrelay.sink.disabled (billing)",
		},
		{relay.TopicSinkRecovered, `{"id":"billing"}`, "resolve", "hubrelay/sink/h//billing", "", ""},
	} {
		s, p := openTest(t, sinktest.Accept)
		d := note(c.topic, c.object, `["c1"]`)
		if err := s.Deliver(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		if c.action == "" {
			if len(p.events) > 0 {
				t.Errorf("%s %s sent %+v", c.topic, c.object, p.events[0])
			}
			continue
		}
		e := p.events[0]
		if e.Action != c.action || e.DedupKey != c.dedup {
			t.Errorf("%s %s: %s of %s", c.topic, c.object, e.Action, e.DedupKey)
		}
		if pl := e.Payload; c.action == "trigger" && (pl.Summary != c.said || pl.Severity != c.severity ||
			pl.Source != "h" || pl.Class != c.topic ||
			pl.Group != "production" || pl.Component != "c1" || pl.Timestamp != "2024-03-12T21:01:20Z" ||
			string(pl.Details) != string(d.Notifications[0].Data)) {
			t.Errorf("%s %s: %+v", c.topic, c.object, pl)
		}
		shown, err := s.Preview(t.Context(), d)
		var again event
		if err != nil || json.Unmarshal(shown.Payload, &again) != nil || again.DedupKey != e.DedupKey ||
			strings.Contains(fmt.Sprint(shown.Target, shown.Headers, string(shown.Payload)), key) {
			t.Errorf("explained as %s, %v", shown.Payload, err)
		}
	}
}

// Whatever a producer writes fits what PagerDuty takes.
func TestLimits(t *testing.T) {
	t.Parallel()
	s, p := openTest(t, sinktest.Accept)
	long := strings.Repeat("ü", 5000)
	d := note("container.error", fmt.Sprintf(`{"id":%q,"error":%q,"log":%q}`, long, long, strings.Repeat("x", 250_000)),
		`["`+long+`"]`)
	if err := s.Deliver(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	// As escapes for HTML these would be more than an event may have.
	marked := strings.Repeat("<", 250_000)
	if err := s.Deliver(t.Context(),
		note("container.error", fmt.Sprintf(`{"id":"x","log":%q}`, marked), `[]`)); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(p.events[1].Payload.Details), marked) {
		t.Error("the details are not those of the event")
	}
	sample := note("container.error", `{"id":"x"}`, `[]`)
	n := &sample.Notifications[0]
	n.Cursor, n.Data = "", append(n.Data[:len(n.Data)-1:len(n.Data)-1], `,"sample":true}`...)
	if err := s.Deliver(t.Context(), sample); err != nil {
		t.Fatal(err)
	}
	if e := p.events[2]; e.Payload.Severity != "info" || e.DedupKey != "hubrelay-sample" {
		t.Errorf("a sample is %+v", e)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		config  Config
		problem string
	}{
		{Config{URL: endpoint, RoutingKey: key, Severity: "info"}, ""},
		{Config{URL: endpoint, Severity: "info"}, "routing_key is missing"},
		{Config{URL: endpoint, RoutingKey: "s3cret", Severity: "info"}, "32 letters and digits"},
		{
			Config{URL: endpoint, RoutingKey: strings.Repeat("s3cret-!", 4), Severity: "info"},
			"letters and digits alone",
		},
		{Config{URL: endpoint, RoutingKey: key, RoutingKeyFile: "x", Severity: "info"}, "conflicts with routing_key"},
		{
			Config{URL: endpoint, RoutingKeyFile: "testdata/missing", Severity: "info"},
			"routing_key_file cannot be read",
		},
		{Config{URL: endpoint, RoutingKey: key, Severity: "bad"}, "severity is unknown"},
		{Config{URL: "http://127.0.0.1/", RoutingKey: key, Severity: "info"}, "url is not allowed"},
		{Config{URL: endpoint, RoutingKey: key, Severity: "info", AllowCIDRs: []string{"x"}}, "allow_cidrs.0"},
	} {
		err := c.config.validate()
		if (err == nil) != (c.problem == "") || err != nil &&
			(!strings.Contains(err.Error(), c.problem) || strings.Contains(err.Error(), "s3cret")) {
			t.Errorf("%+v: %v", c.config, err)
		}
	}
}

// An event of one account cannot resolve the alert of another one.
func TestDedupKey_SeparatesAccounts(t *testing.T) {
	t.Parallel()
	key := func(account string) string {
		return dedupKey(relay.Notification{Hub: "h", Account: account, Topic: "container.error"},
			relay.Envelope{Object: relay.Object{ID: "x"}})
	}
	if a, b := key("acme"), key("evil"); a == b {
		t.Errorf("got the key %s for both", a)
	}
}
