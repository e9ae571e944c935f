package webhook

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/sinks/sinktest"
)

// The suite holds by every way to the receiver, with everything that may be a credential.
func TestConformanceOfSettings(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"", "http", "socks5"} {
		t.Run("proxy "+scheme, func(t *testing.T) {
			sinktest.Run(t, sinktest.Harness{
				RetryAfter: 2 * time.Minute,
				Batches:    true,
				Secrets: []string{
					"s3cretpath", "s3crettoken", "s3cretbearer", "s3cretheader", "s3cretproxy",
					secretA,
				},
				Open: func(t *testing.T, b sinktest.Behavior) (relay.Sink,
					func() []string,
				) {
					return openAll(t, b, scheme)
				},
			})
		})
	}
}

func openAll(t *testing.T, b sinktest.Behavior, scheme string) (relay.Sink, func() []string) {
	f := &far{behavior: b, done: make(chan struct{})}
	srv := httptest.NewServer(f)
	t.Cleanup(func() { close(f.done); srv.Close() })
	name := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(name, []byte(srv.URL+"/s3cretpath?token=s3crettoken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b == sinktest.Unreachable {
		_ = srv.Listener.Close()
	}
	c := &Config{
		URLFile: name, Format: formatStandard, Secrets: []string{secretA}, Bearer: "s3cretbearer",
		Headers: map[string]string{"X-Key": "s3cretheader"},
	}
	if scheme != "" {
		c.Proxy = scheme + "://me:s3cretproxy@" + startProxy(t, nil).address
	}
	s := openTest(t, c)
	return s, func() []string { f.mu.Lock(); defer f.mu.Unlock(); return append([]string(nil), f.ids...) }
}
