package eventlog

import (
	"bytes"
	"slices"
	"testing"

	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/resp"
)

const largeData = 256 << 10

// fillUnevenly appends small notifications and then large ones, and returns their number.
func fillUnevenly(t *testing.T, b *testLog) int {
	t.Helper()
	mustAppend(t, b, notifications("h", 1, 500)...)
	large := notifications("h", 501, 560)
	for i := range large {
		large[i].Data = append(large[i].Data, bytes.Repeat([]byte{' '}, largeData-len(large[i].Data))...)
	}
	for part := range slices.Chunk(large, 10) {
		mustAppend(t, b, part...)
	}
	return 560
}

func checkSize(t *testing.T, list []relay.Notification) {
	t.Helper()
	size := 0
	for i := range list {
		size += len(list[i].Data)
	}
	if size > maxReplyBytes+largeData {
		t.Errorf("one read returned %d entries of %d bytes, want at most %d", len(list), size, maxReplyBytes+largeData)
	}
}

func TestTail_LimitsReadSize(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	want := fillUnevenly(t, b)
	r := follow(t, b, streamid.Zero)
	testkit.WaitForValue(t, "all entries", want, func() int { n, _ := r.count(); return n })
	r.check(t, 1, want, 0)
	for _, batch := range r.batches {
		checkSize(t, batch.Notifications)
	}
}

func TestReadFrom_LimitsReadSize(t *testing.T) {
	t.Parallel()
	b := open(t, redistest.Start(t), redisconn.Options{})
	want := fillUnevenly(t, b)
	at, read, reads := streamid.Position{}, 0, 0
	for read < want {
		from, lost, list, err := b.ReadFrom(t.Context(), 0, at, 600)
		if err != nil || lost || from != at || len(list) == 0 {
			t.Fatalf("after %s: got from %s, lost %t, %d entries, %v", at, from, lost, len(list), err)
		}
		checkSize(t, list)
		for i := range list {
			if read++; list[i].ID != notification("h", read).ID {
				t.Fatalf("entry %d: got ID %s", read, list[i].ID)
			}
		}
		at = positionOf(t, list[len(list)-1])
		reads++
	}
	if reads < 2 {
		t.Error("got all entries in one read, want several")
	}
}

func TestNextCount(t *testing.T) {
	t.Parallel()
	read := func(n, size int) []resp.Entry {
		list := make([]resp.Entry, n)
		for i := range list {
			list[i].Body = make([]byte, 10)
		}
		if n > 0 {
			list[n/2].Body = make([]byte, size)
		}
		return list
	}
	for _, c := range []struct {
		count int
		got   []resp.Entry
		want  int
	}{
		{16, nil, 16},
		{16, read(16, 10), 32},
		{16, read(15, 10), 16},
		{512, read(512, 10), maxTailRead},
		{512, read(512, largeData), 16},
		{512, read(1, largeData), 16},
		{16, read(16, largeData), 16},
		{16, read(2, 2*tailTargetBytes), 1},
		{1, read(1, 10), 2},
	} {
		if got := nextCount(c.count, c.got); got != c.want {
			t.Errorf("nextCount after %d of %d entries: got %d, want %d", len(c.got), c.count, got, c.want)
		}
	}
}
