package procpipe

import (
	"errors"
	"io"
	"os"
	"testing"
	"testing/iotest"
	"time"
)

func TestReader_ReadsBufferedDataAfterDeadline(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	if _, err := io.WriteString(w, "no database\n"); err != nil {
		t.Fatal(err)
	}
	if err := r.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	late := NewReader(r)
	text, err := io.ReadAll(iotest.OneByteReader(late))
	if string(text) != "no database\n" || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("open pipe: got %q, %v, want the line and ErrDeadlineExceeded", text, err)
	}
	if _, err := io.WriteString(w, "the end"); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(late); string(text) != "the end" || err != nil {
		t.Errorf("closed pipe: got %q, %v, want %q", text, err, "the end")
	}
}

func TestReader_StopsAtMaxDrained(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	if err := r.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	late := NewReader(r)
	text := make([]byte, 4096)
	total := 0
	for {
		if _, err := w.Write(text); err != nil {
			t.Fatal(err)
		}
		n, err := late.Read(text)
		if total += n; err != nil {
			break
		}
		if total > 2*maxDrained {
			t.Fatalf("got %d bytes, want at most %d", total, maxDrained)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if total != maxDrained {
		t.Errorf("got %d bytes, want %d", total, maxDrained)
	}
}
