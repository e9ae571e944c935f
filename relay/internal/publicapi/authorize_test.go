package publicapi

import (
	"crypto/x509"
	"testing"
	"time"
)

// A chain is valid until its first certificate expires, and one valid chain is enough.
func TestExpiryOf(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_800_000_000, 0)
	chain := func(hours ...int) (chain []*x509.Certificate) {
		for _, h := range hours {
			chain = append(chain, &x509.Certificate{NotAfter: start.Add(time.Duration(h) * time.Hour)})
		}
		return chain
	}
	for _, tt := range []struct {
		chains [][]*x509.Certificate
		want   int
	}{
		{[][]*x509.Certificate{chain(1, 20, 300)}, 1},
		{[][]*x509.Certificate{chain(5, 2, 300)}, 2},
		{[][]*x509.Certificate{chain(5, 2, 300), chain(5, 4, 300), chain(5, 1)}, 4},
	} {
		if got := expiryOf(tt.chains); !got.Equal(start.Add(time.Duration(tt.want) * time.Hour)) {
			t.Errorf("got %s, want %d hours", got.Sub(start), tt.want)
		}
	}
}
