package egress

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
		for name, by := range map[string]http.RoundTripper{"ours": c.transport, "net/http": c.transport.Transport} {
			b.Run(scheme+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						resp, err := by.RoundTrip(NewPost(context.Background(), target.URL(), header, body))
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
