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

// eventScript reads a request with the CloudEvents SDK and verifies its ed25519 signature with the crypto module of
// Node.
const eventScript = `
import { HTTP } from "cloudevents";
import { createPublicKey, verify } from "node:crypto";
const sent = JSON.parse(process.argv[1]);
const raw = Buffer.from(sent.key.slice("whpk_".length), "base64");
const key = createPublicKey({ key: { kty: "OKP", crv: "Ed25519", x: raw.toString("base64url") }, format: "jwk" });
const h = sent.headers;
const message = Buffer.from(h["webhook-id"] + "." + h["webhook-timestamp"] + "." + sent.body);
const signature = h["webhook-signature"].split(" ").find((s) => s.startsWith("v1a,"));
const valid = (m) => verify(null, m, key, Buffer.from(signature.slice(4), "base64"));
const events = [HTTP.toEvent({ headers: h, body: sent.body })].flat();
for (const e of events) e.validate();
console.log(JSON.stringify({
  signed: valid(message), forged: valid(Buffer.concat([message, Buffer.from(" ")])),
  events: events.map((e) => ({ id: e.id, source: e.source, type: e.type, subject: e.subject, time: e.time,
    hubid: e.hubid, accountid: e.accountid, traceparent: e.traceparent, topic: (e.data.topic || e.data.digest.count),
    containers: e.data.context?.containers })),
}));`

const (
	eventPrivate = "whsk_nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A="
	eventPublic  = "whpk_11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="
	eventTrace   = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
)

// The CloudEvents SDK for JavaScript reads our events in both modes, as digests and as batches.
func TestCloudEventsSDKReadsOurs(t *testing.T) {
	one := sinktest.Sample("65f0c2a00123456789abcdef")
	one.Notifications[0].Data = append(
		one.Notifications[0].Data[:len(one.Notifications[0].Data)-1:len(
			one.Notifications[0].Data)-1], `,"traceparent":"`+eventTrace+`"}`...)
	about := func(id string, more string) string {
		return `{"id":"` + id + `","source":"https://hub.example.com/hubs/hub1",` +
			`"type":"com.example.container.created","subject":"c1","time":"` + more +
			`"topic":"container.created","containers":["c1"]}`
	}
	const rest = `"hubid":"hub1","accountid":"acc1",`
	whole := about("65f0c2a00123456789abcdef", `2024-03-12T21:01:20.000Z",`+rest+`"traceparent":"`+eventTrace+`",`)
	batch := sinktest.SampleBatch("65f0c2a0ffffffffffffffff", 2)
	for i := range batch.Notifications {
		batch.Notifications[i].ID = "65f0c2a000000000000000" + []string{"0a", "0b"}[i]
	}
	for name, c := range map[string]struct {
		format string
		d      relay.Delivery
		want   string
	}{
		"structured": {"cloudevents-structured", one, whole},
		"binary":     {"cloudevents-binary", one, whole},
		"batch": {
			"cloudevents-structured", batch,
			about("65f0c2a0000000000000000a", `2024-03-12T21:01:20Z",`+rest) + "," + about("65f0c2a0000000000000000b",
				`2024-03-12T21:01:20Z",`+rest),
		},
		"digest": {
			"cloudevents-structured", sinktest.SampleDigest("65f0c2a0eeeeeeeeeeeeeeee", 5, 3),
			`{"id":"65f0c2a0eeeeeeeeeeeeeeee","source":"https://hub.example.com/hubs/hub1","type":"hubrelay.digest",` +
				`"time":"2026-11-21T00:00:02.000Z","hubid":"hub1","topic":5}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			received := make(chan map[string]any, 1)
			srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				headers := map[string]string{}
				for name := range r.Header {
					headers[strings.ToLower(name)] = r.Header.Get(name)
				}
				received <- map[string]any{"body": string(body), "headers": headers, "key": eventPublic}
			}))
			defer srv.Close()
			sink, err := webhook.Kind().Open(relay.SinkSettings{Name: "a", Log: testkit.Log(t)},
				&webhook.Config{
					URL: srv.URL, Format: c.format, Secrets: []string{eventPrivate}, AllowCIDRs: []string{"127.0.0.1"},
					CloudEvents: webhook.CloudEvents{Source: "https://hub.example.com", TypePrefix: "com.example."},
				})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = sink.Close() }()
			if err := sink.Deliver(t.Context(), c.d); err != nil {
				t.Fatal(err)
			}
			sent, err := json.Marshal(<-received)
			if err != nil {
				t.Fatal(err)
			}
			out := strings.TrimSpace(run(t, nil, "node", "--input-type=module", "-e", eventScript, string(sent)))
			if want := `{"signed":true,"forged":false,"events":[` + c.want + `]}`; out != want {
				t.Errorf("the SDK says\n%s, want\n%s", out, want)
			}
		})
	}
}
