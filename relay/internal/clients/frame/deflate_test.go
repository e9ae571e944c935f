package frame

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// counter counts skipped compressions. The tests call it from one goroutine.
type counter struct{ skipped int }

func (c *counter) CompressionTime(time.Duration) {}
func (c *counter) CompressionSkipped()           { c.skipped++ }

// inflate decompresses a message like a client.
func inflate(t testing.TB, payload []byte) []byte {
	t.Helper()
	data, err := io.ReadAll(flate.NewReader(io.MultiReader(bytes.NewReader(payload), strings.NewReader(deflateTail))))
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) { // there is no last block
		t.Fatal(err)
	}
	return data
}

// readFrame reads one frame from the server.
func readFrame(t testing.TB, in io.Reader) (first byte, payload []byte) {
	t.Helper()
	header := make([]byte, 10)
	if _, err := io.ReadFull(in, header[:2]); err != nil {
		t.Fatal(err)
	}
	size := int(header[1])
	switch header[1] {
	case 126:
		_, _ = io.ReadFull(in, header[2:4])
		size = int(binary.BigEndian.Uint16(header[2:]))
	case 127:
		_, _ = io.ReadFull(in, header[2:10])
		size = int(binary.BigEndian.Uint64(header[2:]))
	}
	payload = make([]byte, size)
	if _, err := io.ReadFull(in, payload); err != nil {
		t.Fatal(err)
	}
	return header[0], payload
}

func TestDeflater_LimitsCPU(t *testing.T) {
	t.Parallel()
	observer := &counter{}
	d := NewDeflater(Compression{Enabled: true, CPU: 100 * time.Millisecond}, observer)
	now := time.Now()
	const each = 10 * time.Millisecond // per message
	calls := 0
	d.now = func() time.Time {
		if calls++; calls%2 == 0 {
			now = now.Add(each)
		}
		return now
	}
	data := bytes.Repeat([]byte("x"), 300)
	tries := func(live bool, most int) (done int) {
		for range most {
			calls = 0
			if frame, _ := d.compressFrame(live, [][]byte{data}); frame != nil {
				done++
			}
		}
		return done
	}
	// The budget refills during the work, by a tenth of the time.
	if done := tries(false, 100); done != 6 {
		t.Errorf("replays compressed %d messages, want half of the budget", done)
	}
	if done := tries(true, 100); done != 6 {
		t.Errorf("live messages: %d compressed, want the rest", done)
	}
	now = now.Add(time.Minute)
	if done := tries(true, 100); done != 12 {
		t.Errorf("after a minute %d compressed, want the budget of one second", done)
	}
	if got := observer.skipped; got != 300-24 {
		t.Errorf("%d counted as skipped", got)
	}
	// A busy compressor is not waited for.
	now = now.Add(time.Minute)
	for range cap(d.compressors) {
		<-d.compressors
	}
	if done := tries(true, 1); done != 0 {
		t.Error("a message was compressed without a compressor")
	}
	d = NewDeflater(Compression{Enabled: true, CPU: 2500 * time.Millisecond}, observer)
	if most := cap(d.compressors); most != 4 {
		t.Errorf("%d compressors for 2.5 processors", most)
	}
}

// FuzzDeflate checks that a compressed message inflates to the original, with a new and with a reused compressor.
func FuzzDeflate(f *testing.F) {
	f.Add([]byte(`{"topic":"x"}`), []byte(`,"cursor":"a"}`))
	f.Add(bytes.Repeat([]byte{0}, 70_000), []byte{})
	f.Fuzz(func(t *testing.T, a, b []byte) {
		d := NewDeflater(Compression{Enabled: true, MinSize: 1, CPU: 8 * time.Second}, &counter{})
		whole := append(append([]byte{}, a...), b...)
		for range 3 {
			frame, saved := d.compressFrame(true, [][]byte{a, b})
			if frame == nil {
				continue
			}
			first, payload := readFrame(t, bytes.NewReader(frame))
			if first != finText|rsv1 || !bytes.Equal(inflate(t, payload), whole) ||
				len(frame)+saved != len(newText(a, b)) ||
				saved <= 0 {
				t.Fatalf("%q became %x", whole, frame)
			}
		}
	})
}
