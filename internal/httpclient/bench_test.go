package httpclient

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
)

// BenchmarkPost compares Transport.Post with net/http. The time includes both the client and the server.
func BenchmarkPost(b *testing.B) {
	for _, scheme := range []string{"http", "https"} {
		discard := func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }
		c, target := startServer(b, scheme, new(atomic.Bool), discard)
		header := http.Header{"Content-Type": {"application/json"}, "User-Agent": {"hubrelay"}}
		req := &Request{
			Head:   NewRequestTemplate(target.URL(), header, "webhook-id"),
			Values: []string{"5f0c8a7e9d3b2a1c4e6f8a92"},
			Body:   make([]byte, 500),
		}
		ours := func() (*http.Response, error) { return c.transport.Post(context.Background(), req) }
		netHTTP := func() (*http.Response, error) { return c.transport.RoundTrip(req.ToHTTP(context.Background())) }
		for name, post := range map[string]func() (*http.Response, error){"ours": ours, "net/http": netHTTP} {
			b.Run(scheme+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						resp, err := post()
						if err != nil {
							b.Error(err)
							return
						}
						_, _ = io.Copy(io.Discard, resp.Body)
						_ = resp.Body.Close()
					}
				})
			})
		}
	}
}
