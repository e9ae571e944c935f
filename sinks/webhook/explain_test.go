package webhook

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/sinks/sinktest"
)

// Explain shows what Deliver sends, except possible credentials.
func TestExplain(t *testing.T) {
	t.Parallel()
	srv, last := capture(t, nil)
	host := srv.Listener.Addr().String()
	s := openTest(t, &Config{
		URL: "http://s3cretuser:s3cretpass@" + host + "/s3cretpath?t=s3crettoken", Secrets: []string{secretA, secretB},
	})
	d := sinktest.Sample("0123456789abcdef01234567")
	var sink relay.Sink = s
	explainer, ok := sink.(relay.Previewer)
	if !ok {
		t.Fatal("the webhook is no Explainer")
	}
	e, err := explainer.Preview(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprintf("%+v %s", e, e.Payload); strings.Contains(text, "s3cret") ||
		strings.Contains(text, secretA[6:]) {
		t.Errorf("a secret is shown: %s", text)
	}
	if err := s.Deliver(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	sent, body := last()
	if e.Method != sent.Method || e.Target != "http://"+host+"/…" || string(e.Payload) != string(body) {
		t.Errorf("explained %s %s %s, sent %s", e.Method, e.Target, e.Payload, body)
	}
	shown := http.Header{}
	for _, h := range e.Headers {
		shown.Add(h.Name, h.Value)
	}
	if !verify(t, secretA, shown, e.Payload) || !verify(t, secretB, shown, e.Payload) {
		t.Errorf("the signature %q does not verify", shown.Get("webhook-signature"))
	}
	if shown.Get("Authorization") != hiddenValue || shown.Get("Host") != host {
		t.Errorf("headers %v", shown)
	}
	for name := range sent.Header {
		if shown.Get(name) == "" {
			t.Errorf("%s was sent and is not shown", name)
		}
		shown.Del(name)
	}
	shown.Del("Host")
	if len(shown) > 0 {
		t.Errorf("%v is shown and was not sent", shown)
	}
}
