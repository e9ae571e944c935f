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
	repeat := func(size, n int) (sizes []int) {
		for range n {
			sizes = append(sizes, size)
		}
		return sizes
	}
	for name, sizes := range map[string][]int{
		"small":         repeat(small, 100_000),
		"large":         repeat(large, 60),
		"large first":   append(repeat(large, 36), repeat(small, 20_000)...),
		"small first":   append(repeat(small, 20_000), repeat(large, 45)...),
		"large between": append(append(repeat(small, 3000), repeat(large, 45)...), repeat(small, 5000)...),
		"alternating":   append(append(append(repeat(large, 20), repeat(small, 10_000)...), repeat(large, 20)...), repeat(small, 10_000)...),
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
