package main_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
)

// envelope is the error envelope with only the members of the contract.
type envelope struct {
	Error struct {
		Status int            `json:"status"`
		Code   string         `json:"code"`
		Title  string         `json:"title"`
		Detail string         `json:"detail"`
		Source string         `json:"source"`
		Extra  map[string]any `json:"extra"`
	} `json:"error"`
	Data *json.RawMessage `json:"data"`
}

// wantError expects an error with this code, this JSON pointer, and a detail that contains part.
func wantError(t *testing.T, r testkit.Reply, code, source, detail string) envelope {
	t.Helper()
	var e envelope
	decoder := json.NewDecoder(strings.NewReader(r.Body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&e); err != nil {
		t.Errorf("answered %d %q: %v", r.Status, r.Body, err)
		return e
	}
	got := e.Error
	if got.Code != code || got.Source != source || !strings.Contains(got.Detail, detail) {
		t.Errorf("answered %s\nwant %s at %q with %q", r.Body, code, source, detail)
	}
	if got.Status != r.Status || fmt.Sprint(got.Status) != code[:3] || got.Title == "" || e.Data != nil ||
		!strings.HasSuffix(strings.TrimSpace(r.Body), `"data":null}`) {
		t.Errorf("%d is no envelope: %s", r.Status, r.Body)
	}
	if contentType := r.Header.Get("Content-Type"); !strings.HasPrefix(contentType, "application/json") {
		t.Errorf("the envelope is sent as %q", contentType)
	}
	return e
}

// TestBadBodies sends invalid bodies and checks that nothing is stored.
func TestBadBodies(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	store := redisAt(t, server.Socket)
	d := serve(t, daemonConfig{redis: fmt.Sprintf("url: %q", server.URL()), server: ", max_body: 512KiB"})
	in := func(context string) string { return `{"topic":"job.created","context":{` + context + `}}` }
	for name, tc := range map[string]struct{ contentType, body, code, source, detail string }{
		"malformed JSON":   {"", `{"topic":"job.created",}`, "400.invalid-syntax", "", "line 1, column 24"},
		"cut off":          {"", `{"topic":"job.created","context":{"x":`, "400.invalid-syntax", "/context/x", "ends"},
		"empty":            {"", "", "400.invalid-syntax", "", "empty"},
		"two documents":    {"", plain + plain, "400.invalid-syntax", "", "expected the end"},
		"a string":         {"", `"job.created"`, "422.invalid-argument", "", "object"},
		"topic a number":   {"", `{"topic":7,"context":{}}`, "422.invalid-argument", "/topic", "string"},
		"context an array": {"", `{"topic":"job.created","context":[]}`, "422.invalid-argument", "/context", "object"},
		"object a string": {
			"", `{"topic":"job.created","object":"x","context":{}}`, "422.invalid-argument",
			"/object", "object",
		},
		"state a boolean": {
			"", `{"topic":"job.created","object":{"state":true},"context":{}}`,
			"422.invalid-argument", "/object/state", "string",
		},
		"list of numbers": {
			"", in(`"containers":["a",2]`), "422.invalid-argument", "/context/containers/1",
			"string",
		},
		"missing topic": {"", `{"context":{}}`, "422.missing-argument", "/topic", "topic"},
		"unknown topic": {
			"", `{"topic":"container.craeted","context":{}}`, "422.invalid-argument", "/topic",
			"container.created",
		},
		"our own topic": {
			"", `{"topic":"hubrelay.resync","context":{}}`, "422.invalid-argument", "/topic",
			"no topic",
		},
		"another hub":   {"", in(`"hub_id":"hub-2"`), "422.invalid-argument", "/context/hub_id", "hub-2"},
		"duplicate key": {"", in(`"a":1,"a":2`), "422.invalid-argument", "/context/a", "twice"},
		"escaped duplicate": {
			"", `{"topic":"job.created","\u0074opic":"job.created","context":{}}`,
			"422.invalid-argument", "/topic", "twice",
		},
		"invalid UTF-8": {"", in("\"a/b\":\"\xff\xfe\""), "400.invalid-syntax", "/context/a~1b", "UTF-8"},
		"deep nesting": {
			"", in(`"x":` + strings.Repeat("[", 200) + strings.Repeat("]", 200)),
			"400.invalid-syntax", "/context/x" + strings.Repeat("/0", 62), "64",
		},
		"a bomb": {
			"", strings.Repeat("[", 400_000), "400.invalid-syntax", "/0" + strings.Repeat("/0", 64),
			"64",
		},
		"large body":    {"", in(`"x":"` + strings.Repeat("x", 600_000) + `"`), "413.too-large", "", "524288"},
		"large for one": {"", in(`"x":"` + strings.Repeat("x", 300_000) + `"`), "413.too-large", "", "262144"},
		"empty batch":   {"", "[]", "422.invalid-argument", "", "empty"},
		"batch, one bad": {
			"", "[" + plain + "," + plain + `,{"topic":"job.craeted","context":{}},` + plain + "]",
			"422.invalid-argument", "/2/topic", "job.created",
		},
		"batch, cut off": {"", "[" + plain + "," + plain, "400.invalid-syntax", "", "found the end"},
		"batch, other hub": {
			"", "[" + plain + "," + in(`"hub_id":"hub-2"`) + "]", "422.invalid-argument",
			"/1/context/hub_id", "hub-1",
		},
		"NDJSON, one bad": {
			"application/x-ndjson", "\n" + lines(3) + "\n{\"context\":{}}\n" + lines(1),
			"422.missing-argument", "/3/topic", "topic",
		},
		"NDJSON, broken": {"application/x-ndjson", lines(1) + "{\n", "400.invalid-syntax", "/1", "line 2"},
		"NDJSON, empty":  {"application/x-ndjson", "\n\n", "422.invalid-argument", "", "no event"},
		"text":           {"text/plain", plain, "415.invalid-content-type", "", "application/x-ndjson"},
		"a form": {
			"application/x-www-form-urlencoded", plain, "415.invalid-content-type", "",
			"application/json",
		},
		"Latin-1": {"application/json; charset=iso-8859-1", plain, "415.invalid-content-type", "", "UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			contentType := tc.contentType
			if contentType == "" {
				contentType = "application/json"
			}
			r := d.Do(t, testkit.Request{
				Method: "POST", Key: opsKey, Hub: "hub-1", ContentType: contentType,
				Body: tc.body,
			})
			wantError(t, r, tc.code, tc.source, tc.detail)
		})
	}
	if n, err := store.XLen(t.Context(), "hubrelay:log:{0}").Result(); err != nil || n != 0 {
		t.Errorf("%d events were stored, %v", n, err)
	}
	if ids := d.Publish(t, "hub-1", "application/json", plain, nil); len(ids) != 1 {
		t.Errorf("a good one was answered %v", ids)
	}
}

// TestBadRequests tests addresses, methods, keys and headers.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	d := serve(t, daemonConfig{redis: `url: "memory:"`, keys: `
    - {name: narrow, key: narrow-key-0123456789abcdef, account_id: acme, hubs: [hub-2],
       capabilities: [notifications-publish]}
    - {name: old, key: old-key-0123456789abcdef, hubs: ["*"], expires: 2020-01-31}`})
	const narrow = "narrow-key-0123456789abcdef"
	post := func(key, hub string) testkit.Request {
		return testkit.Request{Method: "POST", Key: key, Hub: hub, ContentType: "application/json", Body: plain}
	}
	with := func(r testkit.Request, name, value string) testkit.Request {
		r.Header = map[string]string{name: value}
		return r
	}
	foreign := post(narrow, "hub-2")
	foreign.Body = `{"topic":"job.created","context":{"account_id":"other"}}`
	compressed := with(post(opsKey, "hub-1"), "Content-Encoding", "gzip")
	for name, tc := range map[string]struct {
		request      testkit.Request
		code, source string
		detail       string
	}{
		"unknown path": {
			testkit.Request{Method: "GET", Path: "/v1/hubs", Key: opsKey},
			"404.uri", "",
			"/v1/hubs",
		},
		"unknown path, slash": {
			testkit.Request{Method: "GET", Path: notificationsPath + "/", Key: opsKey},
			"404.uri", "", "",
		},
		"admin path": {testkit.Request{Method: "GET", Path: "/metrics"}, "404.uri", "", ""},
		"wrong method": {
			testkit.Request{Method: "DELETE", Key: opsKey, Hub: "hub-1"},
			"405.method", "",
			"DELETE",
		},
		"unknown method": {testkit.Request{Method: "BREW"}, "405.method", "", "BREW"},
		"token without key": {
			testkit.Request{Method: "GET", Hub: "hub-1"},
			"401.auth-invalid", "",
			"Authorization",
		},
		"publish without key": {post("", "hub-1"), "401.auth-invalid", "", "Authorization"},
		"wrong key":           {post("wrong-key-0123456789abcdef", "hub-1"), "401.auth-invalid", "", "not known"},
		"other scheme": {
			with(post("", "hub-1"), "Authorization", "Basic b3BzOms="), "401.auth-invalid", "",
			"Bearer",
		},
		"expired key": {
			testkit.Request{Method: "GET", Key: "old-key-0123456789abcdef", Hub: "hub-1"},
			"401.auth-expired", "", "2020-01-31",
		},
		"without capability":   {post(readerKey, "hub-1"), "403.permissions", "", "notifications-publish"},
		"publish to other hub": {post(narrow, "hub-1"), "403.wrong-hub", "", "hub-1"},
		"token for other hub": {
			testkit.Request{Method: "GET", Key: narrow, Hub: "hub-1"},
			"403.wrong-hub", "",
			"hub-1",
		},
		"publish without hub": {post(opsKey, ""), "422.missing-argument", "", "X-Hub-Id"},
		"hub too long":        {post(opsKey, strings.Repeat("h", 300)), "422.invalid-argument", "", "X-Hub-Id"},
		"another account":     {foreign, "422.invalid-argument", "/context/account_id", "account"},
		"no content type": {
			testkit.Request{Method: "POST", Key: opsKey, Hub: "hub-1", Body: plain},
			"415.invalid-content-type", "", "application/json",
		},
		"compressed": {compressed, "415.invalid-content-type", "", "compressed"},
		"idempotency key, long": {
			with(post(opsKey, "hub-1"), "Idempotency-Key", strings.Repeat("k", 256)),
			"422.invalid-argument", "", "Idempotency-Key",
		},
		"idempotency key, space": {
			with(post(opsKey, "hub-1"), "Idempotency-Key", "a b"), "422.invalid-argument", "",
			"Idempotency-Key",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := d.Do(t, tc.request)
			e := wantError(t, r, tc.code, tc.source, tc.detail)
			switch tc.code {
			case "403.permissions":
				if want := map[string]any{"capability": "notifications-publish"}; !reflect.DeepEqual(e.Error.Extra,
					want) {
					t.Errorf("extra is %v, want %v", e.Error.Extra, want)
				}
			case "405.method":
				if allow := r.Header.Get("Allow"); !strings.Contains(allow, "GET") || !strings.Contains(allow, "POST") {
					t.Errorf("Allow is %q", allow)
				}
			}
		})
	}
	t.Run("idempotency key for other content", func(t *testing.T) {
		d.Publish(t, "hub-1", "application/json", plain, map[string]string{"Idempotency-Key": "k"})
		r := post(opsKey, "hub-1")
		r.Body = "[" + plain + "]"
		wantError(t, d.Do(t, with(r, "Idempotency-Key", "k")), "422.invalid-argument", "", "Idempotency-Key")
	})
	t.Run("the account of a key is filled in", func(t *testing.T) {
		ws := d.connect(t, opsKey, "hub-2", "")
		if r := d.Do(t, post(narrow, "hub-2")); r.Status != http.StatusAccepted {
			t.Fatalf("answered %d %s", r.Status, r.Body)
		}
		if got := ws.wait(t, 1)[0]; !strings.Contains(got, `"account_id":"acme"`) {
			t.Errorf("it became %s", got)
		}
	})
}

// TestDocuments checks that the two API descriptions exist and contain the path.
func TestDocuments(t *testing.T) {
	t.Parallel()
	d := serve(t, daemonConfig{redis: `url: "memory:"`})
	for _, path := range []string{"/openapi.yaml", "/asyncapi.yaml"} {
		r := d.Do(t, testkit.Request{Method: "GET", Path: path})
		if r.Status != http.StatusOK || !strings.Contains(r.Body, notificationsPath) {
			t.Errorf("%s: %d, %d bytes", path, r.Status, len(r.Body))
		}
	}
	if r, err := d.GetHealth(t.Context(), "/healthz"); err != nil || r.Status != http.StatusOK {
		t.Errorf("healthz answers %d, %v", r.Status, err)
	}
	testkit.Eventually(t, "the daemon to be ready", d.Ready(http.StatusOK))
	testkit.WaitFor(t, "metrics to show Redis", func() bool { return d.Metric(t, "hubrelay_redis_up") > 0 })
}
