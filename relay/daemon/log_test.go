package daemon

import (
	"testing"

	"github.com/hubrelay/hubrelay/relay/internal/config"
)

func TestLogRetention_HalfOfMemoryByDefault(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ maxBytes, maxMemory, want int64 }{
		{0, 0, 0}, {0, 1000, 250}, {600, 1000, 300}, {600, 0, 300},
	} {
		cfg := &config.Config{}
		cfg.Redis.Partitions, cfg.Redis.Retention.MaxBytes = 2, config.Size(tt.maxBytes)
		a := &Daemon{cfg: cfg}
		if got := a.logRetention(tt.maxMemory).MaxBytes; got != tt.want {
			t.Errorf("max_bytes %d, memory %d: got %d per partition, want %d", tt.maxBytes, tt.maxMemory, got, tt.want)
		}
	}
}
