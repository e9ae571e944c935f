package httpclient

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
)

// What a post costs of the time of both sides, beside one that net/http makes.
func BenchmarkPost(b *testing.B) {
	for _, scheme := range []string{"http", "https"} {
		c, target := server(b, scheme, new(atomic.Bool), func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
		body := make([]byte, 500)
		header := http.Header{"Content-Type": {"application/json"}, "User-Agent": {"hubrelay"}}
		post := &Request{Head: NewRequestTemplate(target.URL(), header, "webhook-id"), Values: []string{"5f0c8a7e9d3b2a1c4e6f8a92"}, Body: body}
		ours := func() (*http.Response, error) { return c.transport.Post(context.Background(), post) }
		theirs := func() (*http.Response, error) { return c.transport.RoundTrip(post.ToHTTP(context.Background())) }
		for name, by := range map[string]func() (*http.Response, error){"ours": ours, "net/http": theirs} {
			b.Run(scheme+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						resp, err := by()
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
