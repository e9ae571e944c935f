package procpipe

import (
	"errors"
	"io"
	"os"
	"testing"
	"testing/iotest"
	"time"
)

// What lies in a pipe is read however late its reader comes, and no more than that.
func TestReadsBehindTheDeadline(t *testing.T) {
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
	if text, err := io.ReadAll(iotest.OneByteReader(late)); string(text) != "no database\n" || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%q, %v while somebody holds it open", text, err)
	}
	if _, err := io.WriteString(w, "the end"); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(late); string(text) != "the end" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
}

// Somebody who writes for ever is not listened to for ever.
func TestReadsSoMuchBehindTheDeadline(t *testing.T) {
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
			t.Fatalf("%d bytes were read", total)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if total != maxDrained {
		t.Errorf("%d bytes were read, want %d", total, maxDrained)
	}
}
