package setup

import (
	"testing"
)

func TestLocalURL(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]string{
		"127.0.0.1:9090": "http://127.0.0.1:9090", ":9090": "http://127.0.0.1:9090", "0.0.0.0:1": "http://127.0.0.1:1",
		"[::]:1": "http://[::1]:1", "[::1]:1": "http://[::1]:1", "relay.internal:9090": "http://relay.internal:9090",
	} {
		if got := LocalURL("http", listen); got != want {
			t.Errorf("LocalURL(%q) = %s, want %s", listen, got, want)
		}
	}
}
