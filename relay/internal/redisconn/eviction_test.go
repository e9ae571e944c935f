package redisconn

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
)

// A Redis that may evict any key loses queues without an error.
func TestOpen_WarnsAboutEviction(t *testing.T) {
	t.Parallel()
	for policy, want := range map[string]bool{"allkeys-lru": true, "volatile-lru": true, "noeviction": false} {
		t.Run(policy, func(t *testing.T) {
			s := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", policy)
			var out bytes.Buffer
			b, err := Open(t.Context(), Options{URL: s.URL(), Log: slog.New(slog.NewTextHandler(&out, nil))})
			if err != nil {
				t.Fatal(err)
			}
			b.Close()
			if got := strings.Contains(out.String(), "maxmemory-policy noeviction"); got != want {
				t.Errorf("warning: got %t, want %t: %s", got, want, out.String())
			}
		})
	}
}
