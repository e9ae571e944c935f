package storage

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

type observed struct {
	ratio float64
	full  bool
}

func (o *observed) StorageUsed(ratio float64, full bool) { o.ratio, o.full = ratio, full }

func newTestMonitor(log *bytes.Buffer, read func() (redisconn.Memory, error)) (*Monitor, *observed) {
	seen := new(observed)
	return NewMonitor(Options{
		Limit: 0.9, Observer: seen, Log: slog.New(slog.NewTextHandler(log, nil)),
		Read: func(context.Context) (redisconn.Memory, error) { return read() },
	}), seen
}

func TestMonitor_StopsAndContinues(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	var memory redisconn.Memory
	m, seen := newTestMonitor(&log, func() (redisconn.Memory, error) { return memory, nil })
	for _, step := range []struct {
		name   string
		memory redisconn.Memory
		full   bool
	}{
		{"no limit", redisconn.Memory{Used: 1000}, false},
		{"room", redisconn.Memory{Used: 899, Max: 1000}, false},
		{"full", redisconn.Memory{Used: 900, Max: 1000}, true},
		{"slightly below", redisconn.Memory{Used: 895, Max: 1000}, true},
		{"room again", redisconn.Memory{Used: 880, Max: 1000}, false},
		{"full again, which is not logged", redisconn.Memory{Used: 950, Max: 1000}, true},
		{"room a second time", redisconn.Memory{Used: 880, Max: 1000}, false},
	} {
		memory = step.memory
		m.Measure(t.Context())
		if got := m.MaxMemory(); got != step.memory.Max {
			t.Errorf("%s: got a limit of %d, want %d", step.name, got, step.memory.Max)
		}
		err := m.Check()
		if (err != nil) != step.full || seen.full != step.full {
			t.Errorf("%s: Check() = %v, observed %+v, want full %t", step.name, err, *seen, step.full)
		}
		var public *relay.Error
		if err != nil && (!errors.As(err, &public) || public.Code != relay.CodeStorageFull) {
			t.Errorf("%s: got error %v, want %s", step.name, err, relay.CodeStorageFull)
		}
	}
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 || strings.Count(log.String(), "continues") != 1 {
		t.Errorf("got %d errors in the log, want 1, and its end:\n%s", n, log.String())
	}
}

// The queues of sinks have a limit, and a lower one while publishing is stopped. Dead letters have one from a bit earlier.
func TestMonitor_QueueLimit(t *testing.T) {
	t.Parallel()
	var memory redisconn.Memory
	m, _ := newTestMonitor(new(bytes.Buffer), func() (redisconn.Memory, error) { return memory, nil })
	for _, tt := range []struct {
		memory redisconn.Memory
		total  int64
		isFull bool
	}{
		{redisconn.Memory{Used: 1000}, 0, false},
		{redisconn.Memory{Used: 699, Max: 1000}, 250, false},
		{redisconn.Memory{Used: 800, Max: 1000}, 150, false},
		{redisconn.Memory{Used: 899, Max: 1000}, 51, false},
		{redisconn.Memory{Used: 900, Max: 1000}, 50, true},
		{redisconn.Memory{Used: 895, Max: 1000}, 50, true},
		{redisconn.Memory{Used: 700, Max: 1000}, 250, false},
	} {
		memory = tt.memory
		m.Measure(t.Context())
		if total, isFull := m.QueueLimit(); total > tt.total || total < tt.total*9/10 || isFull != tt.isFull {
			t.Errorf("%+v: got %d, %t, want about %d, %t", memory, total, isFull, tt.total, tt.isFull)
		}
		want := int64(0)
		if tt.memory.Used >= 850 && tt.memory.Max > 0 {
			want = tt.memory.Max / 4
		}
		if got := m.DeadLetterLimit(); got != want {
			t.Errorf("%+v: got a limit of dead letters of %d, want %d", memory, got, want)
		}
	}
}

// While the storage is full, one error is logged per minute. While Redis does not respond, the last result applies.
func TestMonitor_Run(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		reads := 0
		m, _ := newTestMonitor(&log, func() (redisconn.Memory, error) {
			if reads++; reads%2 == 0 {
				return redisconn.Memory{}, errors.New("no answer")
			}
			return redisconn.Memory{Used: 1000, Max: 1000}, nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		if err := m.Run(ctx); err != nil {
			t.Error(err)
		}
		if m.Check() == nil {
			t.Error("the storage has room")
		}
		if n := strings.Count(log.String(), "level=ERROR"); n < 9 || n > 11 {
			t.Errorf("got %d errors in the log of ten minutes, want about 10", n)
		}
	})
}

// A user of Redis who may not run INFO switches the limit off, which is logged once per minute. An unavailable Redis is not.
func TestMonitor_LogsRejectedMeasurement(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	err := errors.New("connection refused")
	m, _ := newTestMonitor(&log, func() (redisconn.Memory, error) { return redisconn.Memory{}, err })
	m.Measure(t.Context())
	if log.Len() > 0 {
		t.Errorf("logged %s", &log)
	}
	err = redisError("NOPERM this user has no permissions to run the 'info' command")
	for range 3 {
		m.Measure(t.Context())
	}
	if n := strings.Count(log.String(), "allow INFO"); n != 1 {
		t.Errorf("%d records, want 1: %s", n, &log)
	}
}

// redisError is an error reply of Redis.
type redisError string

func (e redisError) Error() string { return string(e) }

func (redisError) RedisError() {}
