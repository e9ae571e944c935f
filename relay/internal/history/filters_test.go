package history

import (
	"fmt"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

func TestFilters(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, c *redisconn.Conn) {
		s := NewStore(c, c.Keys())
		r, _ := newRecorder(t, s, "node-a", Retention{MaxAge: time.Hour})
		for _, change := range []struct{ after, filters string }{
			{"0-0", "one"}, {"10-5", "two"}, {"10-5", "two"}, {"30-0", "one"},
		} {
			if err := r.RecordFilters(t.Context(), 0, change.after, []byte(change.filters)); err != nil {
				t.Fatal(err)
			}
		}
		if n, err := c.Commands().XLen(t.Context(), FilterChangesKey(c.Keys(), 0)).Result(); err != nil || n != 3 {
			t.Errorf("got %d changes, %v, want 3", n, err)
		}
		for entry, want := range map[string]string{
			"0-0": "", "1-0": "one", "10-5": "one", "10-6": "two", "30-0": "two", "31-0": "one", "99-0": "one",
		} {
			if got, err := s.FiltersAt(t.Context(), 0, entry); err != nil || string(got) != want {
				t.Errorf("%s: got %q, %v, want %q", entry, got, err, want)
			}
		}
		for _, key := range c.Commands().Keys(t.Context(), FiltersKey(c.Keys(), "*")).Val() {
			c.Commands().Expire(t.Context(), key, 90*time.Minute)
		}
		r.keepFilters(t.Context())
		var keys []string
		for _, text := range []string{"one", "two"} {
			for _, key := range c.Commands().Keys(t.Context(), FiltersKey(c.Keys(), "*")).Val() {
				if got, err := c.Commands().Get(t.Context(), key).Result(); err == nil && got == string(compress([]byte(text))) {
					keys = append(keys, key)
				}
			}
		}
		for i, want := range []time.Duration{2 * time.Hour, 90 * time.Minute} { // only "one" is in force
			if ttl := c.Commands().TTL(t.Context(), keys[i]).Val(); ttl > want || ttl < want-time.Minute {
				t.Errorf("%s expires in %s, want %s", keys[i], ttl, want)
			}
		}
		if len(keys) != 2 {
			t.Errorf("got the keys %v, want two versions", keys)
		}
		if err := c.Commands().Del(t.Context(), keys...).Err(); err != nil {
			t.Fatal(err)
		}
		if got, err := s.FiltersAt(t.Context(), 0, "99-0"); err != nil || got != nil {
			t.Errorf("without the text: got %q, %v", got, err)
		}
		var none *Recorder
		if err := none.RecordFilters(t.Context(), 0, "0-0", nil); err != nil {
			t.Error(err)
		}
	})
}

// The filters of a thousand sinks take little memory.
func TestFilters_AreCompressed(t *testing.T) {
	t.Parallel()
	var text []byte
	for i := range 1000 {
		text = fmt.Appendf(text, `{"name":"sink-%d","topics":["container.*"],"hubs":["5f9c2b1e8a3d4c0017e5a9%02d"]},`, i, i%100)
	}
	if size := len(compress(text)); size > 16<<10 {
		t.Errorf("got %d bytes", size)
	}
	if _, err := decompress("not compressed"); err == nil {
		t.Error("damaged text was accepted")
	}
}
