package redisconn

import (
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/redistest"
)

// A stream keeps as many of its newest entries as fit, whatever the order of small and large ones is.
func TestTrimToBytes(t *testing.T) {
	t.Parallel()
	const (
		small, large = 50, 100_000
		maxBytes     = 4 << 20
	)
	server := redistest.Start(t)
	of := func(size, n int) []int { return slices.Repeat([]int{size}, n) }
	for name, sizes := range map[string][]int{
		"small":         of(small, 100_000),
		"large":         of(large, 60),
		"large first":   slices.Concat(of(large, 36), of(small, 20_000)),
		"small first":   slices.Concat(of(small, 20_000), of(large, 45)),
		"large between": slices.Concat(of(small, 3000), of(large, 45), of(small, 5000)),
		"alternating":   slices.Concat(of(large, 20), of(small, 10_000), of(large, 20), of(small, 10_000)),
	} {
		for mode, trim := range map[string]func(c *Conn, maxLen int64) (int64, error){
			"exact": func(c *Conn, maxLen int64) (int64, error) {
				return c.Commands().XTrimMaxLen(t.Context(), "stream", maxLen).Result()
			},
			"whole nodes": func(c *Conn, maxLen int64) (int64, error) {
				return c.Commands().XTrimMaxLenApprox(t.Context(), "stream", maxLen, 0).Result()
			},
		} {
			t.Run(name+"/"+mode, func(t *testing.T) {
				c := open(t, server, Options{})
				if err := c.Commands().Del(t.Context(), "stream").Err(); err != nil {
					t.Fatal(err)
				}
				for part := range slices.Chunk(sizes, 1000) {
					if _, err := c.Commands().Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
						for _, size := range part {
							pipe.XAdd(t.Context(), &redis.XAddArgs{Stream: "stream", Values: []any{"data", strings.Repeat("x", size)}})
						}
						return nil
					}); err != nil {
						t.Fatal(err)
					}
				}
				calls := 0
				err := TrimToBytes(t.Context(), c.Commands(), ByteLimit{
					Key: "stream", MaxBytes: maxBytes, IsExact: mode == "exact", Trim: func(maxLen int64) (int64, error) {
						calls++
						return trim(c, maxLen)
					},
				})
				size, measureErr := measureStream(t.Context(), c.Commands(), "stream")
				if err != nil || measureErr != nil {
					t.Fatal(err, measureErr)
				}
				t.Logf("%d calls, %d bytes, %d entries", calls, size.bytes, size.entries)
				if size.bytes > maxBytes*11/10 || size.bytes < maxBytes*9/10 {
					t.Errorf("%d bytes in %d entries are left, want about %d", size.bytes, size.entries, maxBytes)
				}
			})
		}
	}
}
