package publicapi

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/clientaddr"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
	"github.com/hubrelay/hubrelay/relay/internal/ingest"
	"github.com/hubrelay/hubrelay/relay/internal/quota"
)

func TestPublish(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	for _, tt := range []struct {
		name    string
		headers []string
		want    ingest.Publication
	}{
		{
			"account's key",
			[]string{"Authorization", "Bearer one", "Content-Type", "application/x-ndjson", "Idempotency-Key", "k 1"},
			ingest.Publication{
				KeyName: "one", Owner: "account acme", Hub: "h1", Account: "acme", ContentType: "application/x-ndjson",
				IdempotencyKey: "k 1",
			},
		},
		{
			"platform's key",
			[]string{"Authorization", "Bearer platform"},
			ingest.Publication{KeyName: "platform", Owner: "key platform", Hub: "h1", AnyAccount: true},
		},
		{
			"a trace",
			[]string{
				"Authorization", "Bearer platform",
				"traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
				"tracestate", "a=1",
			},
			ingest.Publication{KeyName: "platform", Owner: "key platform", Hub: "h1", AnyAccount: true, Trace: relay.Trace{
				Parent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", State: "a=1",
			}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f.pub.got = nil
			a := f.do("POST", pathNotifications, `{"topic":"x"}`, append(tt.headers, "X-Hub-Id", "h1")...)
			want := `{"data":{"ids":["0123456789abcdef01234567","0123456789abcdef01234568"]}}` + "\n"
			if a.status != 202 || string(a.body) != want ||
				a.header.Get("Content-Type") != "application/json; charset=utf-8" {
				t.Errorf("%d %s %v", a.status, a.body, a.header)
			}
			tt.want.Address = netip.MustParseAddr("127.0.0.1")
			if !reflect.DeepEqual(f.pub.got, []ingest.Publication{tt.want}) || f.pub.body != `{"topic":"x"}` {
				t.Errorf("published %+v %q", f.pub.got, f.pub.body)
			}
		})
	}
}

func TestBodyLimits(t *testing.T) {
	t.Parallel()
	const limit = 100_000
	f := newFixture(t, func(o *Options) { o.MaxBody = limit }, nil)
	head := "POST " + pathNotifications + " HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ops\r\nX-Hub-Id: h\r\n"
	chunked := func(n int) string {
		var b strings.Builder
		b.WriteString(head + "Transfer-Encoding: chunked\r\n\r\n")
		for n > 0 {
			size := min(n, 10_000)
			fmt.Fprintf(&b, "%x\r\n%s\r\n", size, strings.Repeat("x", size))
			n -= size
		}
		return b.String() + "0\r\n\r\n"
	}
	sized := func(n int) string {
		return fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, n, strings.Repeat("x", n))
	}
	for _, tt := range []struct {
		name, request string
		length        int // that reaches the publisher
		code          relay.Code
	}{
		{"sized, at the limit", sized(limit), limit, ""},
		{"sized, above", sized(limit + 1), 0, relay.CodeTooLarge},
		{"sized, far above", sized(30 * limit), 0, relay.CodeTooLarge},
		{"chunked, at the limit", chunked(limit), limit, ""},
		{"chunked, above", chunked(limit + 1), 0, relay.CodeTooLarge},
		{"chunked, far above", chunked(30 * limit), 0, relay.CodeTooLarge},
		{"chunked, empty", chunked(0), 0, ""},
		{"no body", head + "\r\n", 0, ""},
		{"broken chunks", head + "Transfer-Encoding: chunked\r\n\r\nzz\r\n", 0, relay.CodeInvalidSyntax},
		{
			"asks first, too large", head + "Expect: 100-continue\r\nContent-Length: 100001\r\n\r\n", 0,
			relay.CodeTooLarge,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f.pub.body = ""
			a := f.raw(tt.request)
			if tt.code == "" {
				if a.status != 202 || len(f.pub.body) != tt.length {
					t.Errorf("%d %s, %d bytes", a.status, a.body, len(f.pub.body))
				}
				return
			}
			if code, _, _ := a.envelope(t); code != string(tt.code) {
				t.Errorf("%s", a.body)
			}
		})
	}
}

func TestPublish_RejectedBodyKeepsConnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(o *Options) { o.MaxBody = 1 << 20 }, nil)
	conn, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
	r := bufio.NewReader(conn)
	for i, size := range []int{10, 300_000, 1 << 20, 3 << 20} {
		_, err := fmt.Fprintf(
			conn,
			"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s",
			pathNotifications,
			size,
			strings.Repeat("x", size),
		)
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		if a := readResponse(t, res); a.status != 401 || res.Close {
			t.Errorf("request %d: %d, closed %v", i, a.status, res.Close)
		}
	}
}

// A rejection waits only for a limited time for a body that never arrives.
func TestPublish_RejectionDoesNotWaitForBody(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	f.api.drainTime = 50 * time.Millisecond
	a := f.raw(
		"POST " + pathNotifications + " HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n",
	) // raw waits 10 s, ReadTimeout is 30 s
	if code, _, _ := a.envelope(t); code != "401.auth-invalid" {
		t.Errorf("%s", a.body)
	}
}

func TestPublish_SlowBody(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil, nil)
	f.api.bodyWindow, f.api.drainTime = 100*time.Millisecond, time.Millisecond
	conn, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(testkit.Patience))
	_, err = io.WriteString(conn, "POST "+pathNotifications+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ops\r\n"+
		"X-Hub-Id: h\r\nContent-Length: 100\r\n\r\nslow")
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	a := readResponse(t, res)
	if code, _, _ := a.envelope(t); code != "400.invalid-syntax" || !strings.Contains(string(a.body), "in time") {
		t.Errorf("%s", a.body)
	}
}

func BenchmarkPublish(b *testing.B) {
	ring := keyring(b)
	a, err := New(Options{
		Authenticator: auth.NewAuthenticator(auth.AuthenticatorOptions{Keys: ring}),
		Publisher:     discard{},
	})
	if err != nil {
		b.Fatal(err)
	}
	text := strings.Repeat("x", 400)
	w := &nullWriter{header: http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		r, _ := http.NewRequest("POST", "http://x"+pathNotifications, strings.NewReader(text))
		r.Header["Authorization"] = []string{"Bearer ops"}
		r.Header["X-Hub-Id"] = []string{"h1"}
		clear(w.header)
		a.ServeHTTP(w, r)
		if w.status != 202 {
			b.Fatal(w.status)
		}
	}
}

// BenchmarkPublishOverSockets measures everything except the publisher, with a cheap client.
func BenchmarkPublishOverSockets(b *testing.B) {
	a, err := New(Options{
		Authenticator: auth.NewAuthenticator(auth.AuthenticatorOptions{Keys: keyring(b)}),
		Publisher:     discard{},
	})
	if err != nil {
		b.Fatal(err)
	}
	addr := serve(b, httpserver.Options{Addr: "127.0.0.1:0", Handler: a})
	request := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ops\r\nX-Hub-Id: h\r\n"+
		"Content-Type: application/json\r\nContent-Length: 400\r\n\r\n%s", pathNotifications, strings.Repeat("x", 400))
	b.SetParallelism(8)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			b.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		response := make([]byte, 4096)
		for pb.Next() {
			if _, err := conn.Write(request); err != nil {
				b.Error(err)
				return
			}
			n, err := conn.Read(response) // the whole response leaves in one write
			if err != nil || !strings.HasPrefix(string(response[:n]), "HTTP/1.1 202") {
				b.Errorf("%q %v", response[:n], err)
				return
			}
		}
	})
}

// Beyond a quota the client learns when to try again. Headers that name an address count only if a trusted proxy sent
// them, and a trusted proxy itself has no quota.
func TestPublish_Quota(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(o *Options) {
		o.TrustedProxies = clientaddr.Proxies{Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}
	}, nil)
	publish := func(headers ...string) response {
		return f.do("POST", pathNotifications, "{}", append(headers, "Authorization", "Bearer one", "X-Hub-Id",
			"h1")...)
	}
	f.pub.err = &quota.ExceededError{Kind: quota.KindKey, RetryIn: 1200 * time.Millisecond}
	a := publish()
	if code, _, _ := a.envelope(t); a.status != 429 || code != "429.rate-limiting" ||
		a.header.Get("Retry-After") != "2" || !strings.Contains(string(a.body), "key publishes more than its quota") {
		t.Errorf("got %d %s, Retry-After %q", a.status, a.body, a.header.Get("Retry-After"))
	}
	f.pub.err, f.pub.got = nil, nil
	publish("X-Forwarded-For", "203.0.113.9, 198.51.100.7")
	publish()
	if got := f.pub.got[0].Address; got != netip.MustParseAddr("198.51.100.7") {
		t.Errorf("behind a proxy: got the address %s", got)
	}
	if got := f.pub.got[1].Address; got.IsValid() {
		t.Errorf("the proxy itself: got the address %s", got)
	}
}
