package redisconn

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
)

func TestOpen_WarnsWithoutReplicationID(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	client := s.Client()
	t.Cleanup(func() { _ = client.Close() })
	for _, tt := range []struct {
		rule string
		want int
	}{{"+info", 0}, {"-info", 1}} {
		if err := client.Do(t.Context(), "ACL", "SETUSER", "default", tt.rule).Err(); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		b, err := Open(t.Context(), Options{URL: s.URL(), Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		b.Close()
		if got := strings.Count(log.String(), "does not report its replication ID"); got != tt.want {
			t.Errorf("with %s: got %d warnings, want %d:\n%s", tt.rule, got, tt.want, &log)
		}
	}
}
