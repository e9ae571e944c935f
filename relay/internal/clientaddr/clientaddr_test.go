package clientaddr

import (
	"net/http"
	"net/netip"
	"testing"
)

func TestProxies_Client(t *testing.T) {
	t.Parallel()
	networks := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	trusted, rfc7239 := Proxies{Networks: networks}, Proxies{Networks: networks, Header: "forwarded"}
	realIP := Proxies{Networks: networks, Header: "X-Real-IP"}
	for name, c := range map[string]struct {
		proxies Proxies
		remote  string
		header  http.Header
		want    string
	}{
		"direct": {trusted, "192.0.2.1:5000", nil, "192.0.2.1"},
		"a client that pretends to be behind a proxy": {
			trusted, "192.0.2.1:5000", http.Header{"X-Forwarded-For": {"198.51.100.7"}}, "192.0.2.1",
		},
		"nobody is trusted": {Proxies{}, "10.0.0.1:5000", http.Header{"X-Forwarded-For": {"198.51.100.7"}}, "10.0.0.1"},
		"a proxy": {
			trusted, "10.0.0.1:5000",
			http.Header{"X-Forwarded-For": {"198.51.100.7"}},
			"198.51.100.7",
		},
		"a forged entry before the one of the proxy": {
			trusted, "10.0.0.1:5000", http.Header{"X-Forwarded-For": {"203.0.113.9, 198.51.100.7"}}, "198.51.100.7",
		},
		"a forged line before the one of the proxy": {
			trusted, "10.0.0.1:5000", http.Header{"X-Forwarded-For": {"203.0.113.9", "198.51.100.7"}}, "198.51.100.7",
		},
		"two proxies": {
			trusted, "10.0.0.1:5000", http.Header{"X-Forwarded-For": {"198.51.100.7, 10.0.0.2"}}, "198.51.100.7",
		},
		"a request of the proxy itself": {trusted, "10.0.0.1:5000", nil, "10.0.0.1"},
		"garbage": {
			trusted, "10.0.0.1:5000",
			http.Header{"X-Forwarded-For": {"1.2.3.4, x"}},
			"invalid IP",
		},
		"Forwarded": {
			rfc7239, "[fd00::1]:5000", http.Header{
				"Forwarded":       {`for="[2001:db8::17]:4711";proto=https, For=10.0.0.2;by=10.0.0.1`},
				"X-Forwarded-For": {"203.0.113.9"},
			}, "2001:db8::17",
		},
		"Forwarded without an address": {
			rfc7239, "10.0.0.1:5000", http.Header{"Forwarded": {"for=_hidden"}}, "invalid IP",
		},
		"Forwarded with quoted separators": {
			rfc7239, "10.0.0.1:5000",
			http.Header{"Forwarded": {`for=198.51.100.7;host="x,for=203.0.113.9;for=203.0.113.9";proto=https`}},
			"198.51.100.7",
		},
		"Forwarded with an escaped quote": {
			rfc7239, "10.0.0.1:5000",
			http.Header{"Forwarded": {`for=198.51.100.7;host="x\",for=203.0.113.9,\""`}},
			"198.51.100.7",
		},
		"Forwarded with an unterminated quote": {
			rfc7239, "10.0.0.1:5000",
			http.Header{"Forwarded": {`for=198.51.100.7;host="x,for=203.0.113.9`}},
			"invalid IP",
		},
		"Forwarded with an unterminated quote of the client": {
			rfc7239, "10.0.0.1:5000", http.Header{"Forwarded": {`for="203.0.113.9`, "for=198.51.100.7"}}, "198.51.100.7",
		},
		"Forwarded that the proxy did not write": {
			trusted, "10.0.0.1:5000", http.Header{
				"Forwarded": {"for=203.0.113.9"}, "X-Real-Ip": {"203.0.113.9"}, "X-Forwarded-For": {"198.51.100.7"},
			}, "198.51.100.7",
		},
		"X-Forwarded-For that the proxy did not write": {
			rfc7239, "10.0.0.1:5000",
			http.Header{"Forwarded": {"for=198.51.100.7"}, "X-Forwarded-For": {"203.0.113.9"}},
			"198.51.100.7",
		},
		"a header with one address": {
			realIP, "10.0.0.1:5000",
			http.Header{"X-Real-Ip": {"198.51.100.7"}, "X-Forwarded-For": {"203.0.113.9"}},
			"198.51.100.7",
		},
		"IPv4 in IPv6": {
			trusted, "[::ffff:10.0.0.1]:5000",
			http.Header{"X-Forwarded-For": {"198.51.100.7:80"}},
			"198.51.100.7",
		},
		"a unix socket": {trusted, "@", http.Header{"X-Forwarded-For": {"198.51.100.7"}}, "invalid IP"},
	} {
		got := c.proxies.Client(&http.Request{RemoteAddr: c.remote, Header: c.header})
		if got.String() != c.want {
			t.Errorf("%s: got %s, want %s", name, got, c.want)
		}
	}
}
