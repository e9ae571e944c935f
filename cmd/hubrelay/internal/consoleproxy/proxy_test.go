package consoleproxy_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

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
	const base = "http://127.0.0.1:4711"
	code := p.URL()
	if !strings.HasPrefix(code, base+"/?code=") || len(code) < len(base)+30 {
		t.Fatalf("got URL %s", code)
	}
	for _, url := range []string{base + "/", base + "/api/sinks", base + "/?code=", base + "/?code=AAAAAAAAAAAAAAAAAAAAAAAAAA"} {
		if w := call("GET", url); w.Code != 401 {
			t.Errorf("%s before the sign-in: got %d, want 401", url, w.Code)
		}
	}
	w := call("GET", code)
	if w.Code != 303 || w.Header().Get("Location") != "/" || len(w.Result().Cookies()) != 1 {
		t.Fatalf("the code: got %d %v, want a redirect with a cookie", w.Code, w.Header())
	}
	if again := call("GET", code); again.Code != 401 || len(again.Result().Cookies()) != 0 {
		t.Errorf("the code again: got %d %v, want 401", again.Code, again.Header())
	}
	cookie = w.Result().Cookies()[0]
	if !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode || cookie.Name != "hubrelay_console_4711" {
		t.Errorf("got cookie %v", cookie)
	}
	for _, c := range []struct {
		name, method, url string
		header            []string
		want              int
	}{
		{"page", "GET", base + "/", nil, 200},
		{"reload of the link", "GET", code, nil, 303},
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
	cookie.Value = strings.Repeat("A", len(cookie.Value))
	if w := call("GET", base+"/api/sinks"); w.Code != 401 {
		t.Errorf("another cookie: got %d, want 401", w.Code)
	}
}
