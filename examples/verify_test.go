package examples

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/sinks/sinktest"
	"github.com/hubrelay/hubrelay/sinks/webhook"
)

// verifyScript reads a received request from its first argument and prints a line for each library and secret.
const verifyScript = `
const sent = JSON.parse(process.argv[1]);
for (const name of ["standardwebhooks", "svix"]) {
  const { Webhook } = await import(name);
  for (const secret of sent.secrets) {
    new Webhook(secret).verify(sent.body, sent.headers);
    let refused = false;
    try { new Webhook(secret).verify(sent.body + " ", sent.headers); } catch { refused = true; }
    console.log(name, refused);
  }
}`

// The common libraries for receivers verify the signatures of both formats with each secret.
func TestLibrariesVerifyOurSignatures(t *testing.T) {
	secrets := []string{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="}
	for _, format := range []string{"notification", "standard"} {
		t.Run(format, func(t *testing.T) {
			received := make(chan map[string]any, 1)
			srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				headers := map[string]string{}
				for name := range r.Header {
					headers[strings.ToLower(name)] = r.Header.Get(name)
				}
				received <- map[string]any{"body": string(body), "headers": headers, "secrets": secrets}
			}))
			defer srv.Close()
			sink, err := webhook.Kind().Open(relay.SinkSettings{Name: "a", Log: testkit.Log(t)},
				&webhook.Config{URL: srv.URL, Format: format, Secrets: secrets, AllowCIDRs: []string{"127.0.0.1"}})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = sink.Close() }()
			if err := sink.Deliver(t.Context(), sinktest.Sample("65f0c2a00123456789abcdef")); err != nil {
				t.Fatal(err)
			}
			sent, err := json.Marshal(<-received)
			if err != nil {
				t.Fatal(err)
			}
			out := run(t, nil, "node", "--input-type=module", "-e", verifyScript, string(sent))
			if want := strings.Repeat("standardwebhooks true\n", 2) +
				strings.Repeat("svix true\n", 2); strings.TrimSpace(out) != strings.TrimSpace(want) {
				t.Errorf("the libraries say:\n%s", out)
			}
		})
	}
}
