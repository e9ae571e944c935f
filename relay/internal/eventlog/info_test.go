package eventlog

import (
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

func TestInfo(t *testing.T) {
	t.Parallel()
	l := open(t, redistest.Start(t), redisconn.Options{})
	if got, err := l.Info(t.Context()); err != nil || got != (Info{}) {
		t.Errorf("empty log: got %+v, %v", got, err)
	}
	mustAppend(t, l, notifications("h", 1, 6)...)
	mustAppend(t, l, notifications("other-hub", 1, 2)...)
	oldest := positionOf(t, readLog(t, l, 0)[0]).Time()
	if err := l.Commands().XTrimMaxLen(t.Context(), Key(l.Keys(), 0), 5).Err(); err != nil {
		t.Fatal(err)
	}
	got, err := l.Info(t.Context())
	if err != nil || got.Length != 5 || got.Stored != 8 || got.OldestAt.Before(oldest) {
		t.Errorf("got %+v, %v, want 5 of 8 entries since %s or later", got, err, oldest)
	}
}
