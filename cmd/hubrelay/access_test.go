package main_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestAccess checks the permissions of keys, tokens and JWTs with the commands that explain them.
func TestAccess(t *testing.T) {
	t.Parallel()
	d := serve(t, daemonConfig{
		redis: `url: "memory:"`,
		auth:  "token_ttl: 1h\n  jwt: {issuer: issuer, audience: hubrelay, jwks_url: \"http://127.0.0.1:1/\"}",
		keys: `    - {name: ci, key: ci-key-0123456789abcdef, account_id: acme, hubs: [hub-1], capabilities: [notifications-publish],
       topics: ["container.*"], networks: [127.0.0.0/8]}
    - {name: old, key: old-key-0123456789abcdef, account_id: acme, hubs: [hub-1], expires: 2020-01-01}
`,
	})
	command := func(wantCode int, stdin string, args ...string) string {
		t.Helper()
		out, errOut, code := call(t, nil, stdin, append(args, "--admin", d.Admin)...)
		if code != wantCode {
			t.Fatalf("%v exited with %d: %s%s", args, code, out, errOut)
		}
		return out + errOut
	}
	for _, tt := range []struct {
		args     string
		wantCode int
		want     string
	}{
		{"ci publish container.error --hub hub-1", 0, `yes: the key publishes in the hub, for the account "acme", from 127.0.0.0/8`},
		{"ci publish job.created --hub hub-1", 1, `no: the key may publish only the topics container.*, not "job.created"`},
		{"ci publish container.error --hub hub-2", 1, `no: the key "ci" has no access to the hub "hub-2"`},
		{"ci publish container.error --hub hub-1 --account other", 1, `no: the key "ci" publishes only for the account "acme"`},
		{"reader publish container.error --hub hub-1", 1, "lacks the capability notifications-publish"},
		{"ci read job.created --hub hub-1 --account acme", 0, `yes: the key reads the hub: events of the account "acme"`},
		{"ci read job.created --hub hub-1 --account other", 1, `no: the event is of the account "other", the key of the account "acme"`},
		{"ops read job.created --hub hub-9 --account other", 0, "yes: the key reads the hub, for all accounts"},
		{"old read job.created --hub hub-1", 1, "no: the API key expired at 2020"},
		{"ci read job.creatd --hub hub-1", 1, "the nearest topic is job.created"},
		{"ci-key-0123456789abcdef read job.created --hub hub-1", 1, "this is the secret of a key"},
		{"ci read hubrelay.sink.disabled --hub hub-1", 1, "no: only sinks"},
		{"nobody read job.created --hub hub-1", 1, `no key has the name "nobody"`},
		{"ci write job.created --hub hub-1", 2, "use publish or read"},
		{"ci read job.created", 2, "--hub"},
	} {
		if out := command(tt.wantCode, "", append([]string{"keys", "check"}, strings.Fields(tt.args)...)...); !strings.Contains(out, tt.want) {
			t.Errorf("%q: got %q, want %q", tt.args, out, tt.want)
		}
	}

	publish := func(hub, account, topic string) {
		t.Helper()
		d.Publish(t, hub, "application/json", fmt.Sprintf(
			`{"topic":%q,"context":{"hub_id":%q,"account_id":%q}}`, topic, hub, account), nil)
	}
	publish("hub-2", "acme", "container.error")
	publish("hub-1", "other", "container.error")
	publish("hub-1", "acme", "job.created")
	publish("hub-1", "", "container.error")
	claims := fmt.Sprintf(`{"iss":"issuer","aud":"hubrelay","sub":"eve","exp":%d,"account_id":"other","hubs":["hub-1"]}`,
		time.Now().Add(time.Hour).Unix())
	token := d.Token(t, "ci-key-0123456789abcdef", "hub-1")
	for _, tt := range []struct {
		args, stdin string
		want        string // the newest event first
	}{
		{"--key ci --hub hub-1", "", "visible visible account hub"},
		{"--key ci", "", "visible visible account hubs"},
		{"--key ci --hub hub-1 --topic job.*", "", "topics visible account hub"},
		{"--key ops --limit 2", "", "visible visible"},
		{"--credential -", token, "visible visible account hub"},
		{"--credential - --hub hub-1", "ci-key-0123456789abcdef\n", "visible visible account hub"},
		{"--claims - --hub hub-1", claims, "visible account visible hub"},
	} {
		out := command(0, tt.stdin, append([]string{"streams", "explain", "-o", "json"}, strings.Fields(tt.args)...)...)
		var e struct {
			Events []struct {
				Visible bool
				Reason  string
			}
		}
		if err := json.Unmarshal([]byte(out), &e); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		var got []string
		for _, event := range e.Events {
			if event.Visible {
				event.Reason += "visible"
			}
			got = append(got, event.Reason)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%q: got %q, want %q", tt.args, got, tt.want)
		}
	}
	out := command(0, "", "streams", "explain", "--key", "ci", "--hub", "hub-1", "--topic", "job.*")
	for _, want := range []string{"stream   hub hub-1\n", "sees 1 of the newest 4 events", "the topics of the stream, job.*, do not include it"} {
		if !strings.Contains(out, want) {
			t.Errorf("got\n%s\nwant %q", out, want)
		}
	}
	conn, refused := d.upgrade(t, "?token="+token, nil)
	if conn == nil {
		t.Fatalf("the token was consumed by an explanation: %+v", refused)
	}
	ws := listenOn(conn)
	publish("hub-1", "acme", "job.created")
	ws.wait(t, 1)
	for _, tt := range []struct {
		args, stdin string
		wantCode    int
		want        string
	}{
		{"--key ci --hub hub-2", "", 1, `cannot open the stream: the key "ci" has no access to the hub "hub-2": use one of its hubs, or another key (403.wrong-hub)`},
		{"--key old", "", 1, "(401.auth-expired)"},
		{"--credential -", token, 1, "(401.auth-invalid)"}, // used by the client above
		{"--claims -", `{"sub":"eve"}`, 1, "the JWT has no expiry (exp)"},
		{"--key nobody", "", 1, `no key has the name "nobody"`},
		{"--key ci --topic jbo.*", "", 1, "jbo"},
		{"--claims -", `[]`, 2, "not a JSON object"},
		{"--key ci --claims -", claims, 2, "specify one of"},
		{"--key old -o json", "", 1, `"code":"401.auth-expired"`},
		{"--key ci --limit 0", "", 2, "--limit"},
		{"--key ci --hub=", "", 2, "--hub is empty"},
	} {
		if out := command(tt.wantCode, tt.stdin, append([]string{"streams", "explain"}, strings.Fields(tt.args)...)...); !strings.Contains(out, tt.want) {
			t.Errorf("%q: got %q, want %q", tt.args, out, tt.want)
		}
	}
	if audit := command(0, "", "audit", "-o", "jsonl"); strings.Contains(audit, token) || strings.Contains(audit, "eve") || !strings.Contains(audit, `"detail":"key ci"`) {
		t.Errorf("the audit log has a credential, or does not have the key: %s", audit)
	}
}
