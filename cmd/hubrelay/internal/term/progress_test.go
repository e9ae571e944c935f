package term

import (
	"bytes"
	"testing"
	"time"
)

func TestProgress(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		bar  bool
		want string
	}{
		{false, "replayed 600 of 1000\nreplayed 1000 of 1000\n"},
		{true, "\r\x1b[Kreplayed [===============               ]  50%  500 of 1000  1000/s" +
			"\r\x1b[Kreplayed [==================            ]  60%  600 of 1000  600/s" +
			"\r\x1b[Kreplayed [==============================] 100%  1000 of 1000  500/s\r\x1b[K"},
	} {
		var out bytes.Buffer
		now := time.Unix(0, 0)
		p := &Progress{
			out: &out, bar: tc.bar, verb: "replayed", total: 1000, now: func() time.Time { return now },
			startedAt: now, shown: now,
		}
		for _, step := range []struct {
			at   time.Duration
			done int
		}{{50, 100}, {500, 500}, {1000, 600}, {1050, 700}, {2000, 1000}} {
			now = time.Unix(0, 0).Add(step.at * time.Millisecond)
			p.Update(step.done)
		}
		p.Clear()
		if out.String() != tc.want {
			t.Errorf("bar %v printed %q, want %q", tc.bar, out.String(), tc.want)
		}
	}
}
