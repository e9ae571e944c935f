package http2budget

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

func TestCounter(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	framer := http2.NewFramer(&b, nil)
	b.WriteString(http2.ClientPreface)
	headers := func(stream uint32) error {
		return framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: make([]byte, 300), EndHeaders: true})
	}
	if err := errors.Join(framer.WriteSettings(), headers(1), framer.WriteData(1, false, make([]byte, 1000)), headers(1),
		headers(3), framer.WritePing(false, [8]byte{}),
		framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 7, BlockFragment: make([]byte, 300)}),
		framer.WriteContinuation(7, true, make([]byte, 300)), framer.WriteSettings(),
		framer.WriteData(1, false, make([]byte, 1))); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1, 7, 512, b.Len()} {
		var c Counter
		got, others := 0, 0
		for part := b.Bytes(); len(part) > 0; part = part[min(size, len(part)):] {
			requests, more := c.Count(part[:min(size, len(part))])
			got, others = got+requests, others+more
		}
		if got != 3 || others != 6 { // SETTINGS, trailers, PING, CONTINUATION, SETTINGS, DATA
			t.Errorf("reads of %d bytes: got %d requests and %d other frames, want 3 and 6", size, got, others)
		}
	}
	var http1 Counter
	if got, others := http1.Count([]byte("PRI * HTTP/1.1\r\n\r\n" + b.String())); got+others != 0 {
		t.Errorf("HTTP/1: got %d requests and %d other frames, want 0", got, others)
	}
}

// A client of TLS 1.3 may send KeyUpdates, but not a flood of them. Small records are no flood.
func TestTLSOverhead(t *testing.T) {
	t.Parallel()
	const record = 22 // what TLS 1.3 adds to a record
	const keyUpdate = record + 5
	for name, tt := range map[string]struct {
		content, others int // bytes of each record, and of records without content before it
		isFlood         bool
	}{
		"large records":        {16 << 10, 0, false},
		"records of a byte":    {1, 0, false},
		"one KeyUpdate each":   {1, keyUpdate, false},
		"flood of KeyUpdates":  {1, 15 * keyUpdate, true},
		"three KeyUpdates":     {1, 3 * keyUpdate, true},
		"records with padding": {1, 1 << 10, true},
	} {
		var o TLSOverhead
		received, reads := int64(0), 0
		for ok := true; ok && reads < 100_000; reads++ {
			received += int64(tt.others + record + tt.content)
			ok = o.Add(tt.content, received)
		}
		if isFlood := reads < 100_000; isFlood != tt.isFlood || isFlood && received > 2<<20 {
			t.Errorf("%s: closed after %d reads and %d bytes, want a flood: %t", name, reads, received, tt.isFlood)
		}
	}
}

// A client with a large window may acknowledge late what it has received.
func TestBudget_LateWindowUpdates(t *testing.T) {
	t.Parallel()
	var b Budget
	now := time.Now()
	const messages = 14_000
	for range messages {
		b.Earn(200)
	}
	for i := range messages {
		if !b.Spend(2, 0, now) { // of the stream and of the connection
			t.Fatalf("no credits after the updates for %d messages", i)
		}
	}
}

// Clients may update the window for bytes that they receive, and send a limited number of other frames.
func TestBudget(t *testing.T) {
	t.Parallel()
	var b Budget
	now := time.Now()
	for i := range 10_000 { // responses of 100 bytes, a request and one frame each
		b.Earn(100)
		if !b.Spend(1, 1, now) {
			t.Fatalf("no credits after %d responses", i)
		}
	}
	frames := 0
	b = Budget{}
	for b.Spend(1, 0, now) {
		frames++
	}
	if frames != MaxCredits/frameCost {
		t.Errorf("got %d frames at once, want %d", frames, MaxCredits/frameCost)
	}
	for range 10_000 { // small steps, which are less than a credit
		now = now.Add(100 * time.Microsecond)
		b.Spend(0, 0, now)
	}
	for frames = 0; b.Spend(1, 0, now); {
		frames++
	}
	if want := creditsPerSecond / frameCost; frames < want-5 || frames > want+5 {
		t.Errorf("got %d frames in the next second, want %d", frames, want)
	}
}
