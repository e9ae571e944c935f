package admission

import (
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
)

func perSecondRate(n int) relay.Rate { return relay.Rate{Count: n, Per: time.Second} }

func TestNewRateLimit_Defaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rate         relay.Rate
		burst        int
		wantBurst, b int
	}{
		{perSecondRate(1), 0, 1, 1},
		{perSecondRate(50), 0, 50, 5},
		{perSecondRate(50), 2, 2, 2},
		{relay.Rate{Count: 90, Per: time.Minute}, 0, 1, 1},
		{relay.Rate{Count: 10, Per: time.Hour}, 0, 1, 1},
		{relay.Rate{}, 0, 1, 1},
	} {
		p := newRateLimit(c.rate, c.burst)
		if p.Burst != c.wantBurst || tokensPerRequest(p) != c.b {
			t.Errorf(
				"newRateLimit(%s, %d): got burst %d and %d tokens per request",
				c.rate,
				c.burst,
				p.Burst,
				tokensPerRequest(p),
			)
		}
	}
}
