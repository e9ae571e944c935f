package brokers

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestExplainRedisTimeout(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want string
	}{
		{
			fmt.Errorf("xadd: %w", redis.ErrPoolTimeout),
			"all connections were in use for 11s, so the message was not sent",
		},
		{
			fmt.Errorf("xadd: %w", os.ErrDeadlineExceeded),
			"the broker did not respond within 11s; it may have stored the message, and a repeat has the same ID",
		},
		{errors.New("OOM"), "OOM"},
	} {
		if got := explainRedisTimeout(c.err, 11*time.Second); got.Error() != c.want {
			t.Errorf("%v: got %q, want %q", c.err, got, c.want)
		}
	}
	if err := explainRedisTimeout(nil, 0); err != nil {
		t.Errorf("got %v, want success", err)
	}
}
