package consoleproxy_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/consoleproxy"
)

func TestProxy(t *testing.T) {
	t.Parallel()
	forwarded := 0
	p := consoleproxy.New(net.TCPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:4711")),
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { forwarded++ }))
	var cookie *http.Cookie
	call := func(method, url string, header ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, url, nil)
		for i := 0; i+1 < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		if cookie != nil {
			r.AddCookie(cookie)
		}
		w := httptest.NewRecorder()
		p.ServeHTTP(w, r)
		return w
	}
	code := p.URL()
	base, secret, _ := strings.Cut(code, "/?code=")
	if !strings.HasPrefix(base, "http://hubrelay-") || !strings.HasSuffix(base, ".localhost:4711") || len(secret) < 26 {
		t.Fatalf("got URL %s", code)
	}
	if w := call("HEAD", code); w.Code != 401 {
		t.Errorf("a preview of the link: got %d, want 401", w.Code)
	}
	for _, url := range []string{base + "/", base + "/api/sinks", base + "/?code=", base + "/?code=AAAAAAAAAAAAAAAAAAAAAAAAAA"} {
		if w := call("GET", url); w.Code != 401 {
			t.Errorf("%s before the sign-in: got %d, want 401", url, w.Code)
		}
	}
	// A file on this machine leads to the link.
	w := call("GET", code, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document")
	if w.Code != 200 || !strings.Contains(w.Body.String(), "url=/") || len(w.Result().Cookies()) != 1 {
		t.Fatalf("the code: got %d %v %s, want a page with a cookie that leads to the console", w.Code, w.Header(), w.Body)
	}
	if again := call("GET", code); again.Code != 401 || len(again.Result().Cookies()) != 0 {
		t.Errorf("the code again: got %d %v, want 401", again.Code, again.Header())
	}
	cookie = w.Result().Cookies()[0]
	if !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode || cookie.Domain != "" {
		t.Errorf("got cookie %v", cookie)
	}
	for _, c := range []struct {
		name, method, url string
		header            []string
		want              int
	}{
		{"page", "GET", base + "/", nil, 200},
		{"read of this page", "GET", base + "/api/sinks", []string{"Sec-Fetch-Site", "same-origin"}, 200},
		{"read of another port", "GET", base + "/api/sinks", []string{"Sec-Fetch-Site", "same-site"}, 403},
		{"frame of another port", "GET", base + "/", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}, 403},
		{"link of another site", "GET", base + "/", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, 200},
		{"session", "GET", base + "/api/session", nil, 200},
		{"sign-in at the daemon", "POST", base + "/api/session", []string{"Sec-Fetch-Site", "same-origin"}, 404},
		{"address of the listener", "GET", "http://127.0.0.1:4711/api/sinks", nil, 403},
		{"change of this page", "POST", base + "/api/sinks/a/pause", []string{"Sec-Fetch-Site", "same-origin"}, 200},
		{"change of another page", "POST", base + "/api/sinks/a/pause", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"change of another port", "POST", base + "/api/sinks/a/pause", []string{"Origin", "http://127.0.0.1:80"}, 403},
		{"another host name", "GET", "http://evil.test:4711/api/sinks", nil, 403},
		{"profiles", "GET", base + "/debug/pprof/heap", nil, 404},
	} {
		before := forwarded
		if w := call(c.method, c.url, c.header...); w.Code != c.want || (forwarded > before) != (c.want == 200) {
			t.Errorf("%s: got %d, want %d", c.name, w.Code, c.want)
		}
	}
	if w := call("GET", code); w.Code != 200 || forwarded == 0 {
		t.Errorf("a reload of the link: got %d, want 200", w.Code)
	}
	cookie.Value = strings.Repeat("A", len(cookie.Value))
	if w := call("GET", base+"/api/sinks"); w.Code != 401 {
		t.Errorf("another cookie: got %d, want 401", w.Code)
	}
}

func TestProxy_CodeExpires(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := consoleproxy.New(net.TCPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:4711")), http.NotFoundHandler())
		time.Sleep(10 * time.Minute)
		w := httptest.NewRecorder()
		p.ServeHTTP(w, httptest.NewRequest("GET", p.URL(), nil))
		if w.Code != 401 || len(w.Result().Cookies()) != 0 {
			t.Errorf("got %d %v, want 401", w.Code, w.Header())
		}
	})
}
