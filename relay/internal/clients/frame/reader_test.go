package frame

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// closeCode returns the code of a close frame from a server.
func closeCode(frame []byte) int {
	if len(frame) < 4 {
		return closeNoStatus
	}
	return int(binary.BigEndian.Uint16(frame[2:]))
}

// FuzzReader checks that close frames have the same code as gorilla's and pongs the same bytes, for any input in
// pieces of any size.
func FuzzReader(f *testing.F) {
	for _, sent := range []string{
		"\x81\x85abcdxxxxx\x89\x82abcd\x01\x02\x8a\x80abcd",         // text, ping, pong
		"\x01\x80abcd\x89\x80abcd\x80\x81abcdx\x82\xfe\x00\x80abcd", // a ping between fragments, a long message cut off
		"\x88\x82\x00\x00\x00\x00\x03\xe8\x81\x80abcd",              // close 1000, and another frame
		"\x88\x80abcd",                                              // close without a code
		"\x88\x82\x00\x00\x00\x00\x03\xed",                          // close 1005, which is never sent
		"\x88\x83\x00\x00\x00\x00\x03\xe8\xff",                      // a reason that is not UTF-8
		"\x88\x81abcdx",                                             // half a code
		"\x81\x81abcdx\x01\x80abcd\x81\x80abcd",                     // a message inside another
		"\x82\xff\x00\x00\x00\x00\x00\x00\x10\x01abcd",              // a byte too large
		"\x82\xff\xff\x00\x00\x00\x00\x00\x10\x01abcd",              // much too large
		"\x00\x80abcd", "\x81\x01x", "\x83\x80abcd", "\xc1\x80abcd", // all broken
		"\x89\x83abcd\x01", "\x89", "",
	} {
		f.Add([]byte(sent), uint8(1))
		f.Add([]byte(sent), uint8(64))
	}
	f.Fuzz(func(t *testing.T, sent []byte, piece uint8) {
		var in Reader
		var got [][]byte
		for left := sent; len(left) > 0 && in.end == NotEnded; {
			n := min(len(left), int(piece)+1)
			for p := left[:n]; len(p) > 0; {
				var r Reply
				if p, r = in.Consume(p); r.Frame != nil {
					got = append(got, r.Frame)
				}
			}
			left = left[n:]
		}
		want := gorillaReplies(t, sent)
		for i, frame := range got {
			if closeCode(frame) == websocket.CloseMessageTooBig && frame[0] == finClose {
				return // gorilla ignores the length of the first fragment, and sends no close frame for a huge length
			}
			if i >= len(want) {
				t.Fatalf("%x: replies %x, gorilla sends %x", sent, got, want)
			}
			if frame[0] == finClose && closeCode(frame) == websocket.CloseProtocolError {
				frame, want[i] = frame[:4], want[i][:4]
				frame[1] = want[i][1]
			}
			if !bytes.Equal(frame, want[i]) {
				t.Fatalf("%x: replies %x, gorilla sends %x", sent, got, want)
			}
		}
		if len(got) != len(want) {
			t.Fatalf("%x: replies %x, gorilla sends %x", sent, got, want)
		}
	})
}

// gorillaReplies returns what gorilla replies to the frames of a client.
func gorillaReplies(t *testing.T, sent []byte) [][]byte {
	t.Helper()
	conn := &played{Reader: bytes.NewReader(sent)}
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	r.Header = http.Header{
		"Connection": {"upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
		"Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="},
	}
	ws, err := (&websocket.Upgrader{}).Upgrade(&hijackable{httptest.NewRecorder(), conn}, r, nil)
	if err != nil {
		t.Fatal(err)
	}
	ws.SetReadLimit(MaxMessage)
	for err == nil {
		_, _, err = ws.NextReader()
	}
	if !strings.HasPrefix(string(conn.written[0]), "HTTP/1.1 101 ") {
		t.Fatalf("gorilla sent %q first", conn.written[0])
	}
	return conn.written[1:]
}

// played is a connection whose client has already sent everything.
type played struct {
	net.Conn
	*bytes.Reader
	written [][]byte
}

func (p *played) Read(b []byte) (int, error)       { return p.Reader.Read(b) }
func (p *played) SetDeadline(time.Time) error      { return nil }
func (p *played) SetWriteDeadline(time.Time) error { return nil }
func (p *played) Close() error                     { return nil }

func (p *played) Write(b []byte) (int, error) {
	p.written = append(p.written, bytes.Clone(b))
	return len(b), nil
}

type hijackable struct {
	*httptest.ResponseRecorder
	conn net.Conn
}

func (h *hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return h.conn, bufio.NewReadWriter(bufio.NewReader(h.conn), bufio.NewWriter(h.conn)), nil
}

// Compressed messages of clients are skipped and never inflated. The bit that marks them is valid only in the first
// frame of a message.
func TestReader_AcceptsCompressedMessages(t *testing.T) {
	t.Parallel()
	const ping, zeros = "\x89\x81\x00\x00\x00\x00!", "\x00\x00\x00\x00"
	bomb := "\xc2\xfe\x0f\xf0" + zeros + strings.Repeat("\x00", 0xff0)
	tests := []struct {
		name, sent string
		code       int // 0 for a pong
	}{
		{"a message", "\xc1\x83" + zeros + "\xca\x49\x00", 0},
		{"an invalid deflate stream", "\xc1\x83" + zeros + "\xff\xff\xff", 0},
		{"not compressed", "\x81\x81" + zeros + "x", 0},
		{"fragments", "\x41\x81" + zeros + "\xca\x00\x81" + zeros + "\x49\x80\x81" + zeros + "\x00", 0},
		{"fragments around a ping", "\x41\x81" + zeros + "\xca\x8a\x80" + zeros + "\x80\x82" + zeros + "\x49\x00", 0},
		{"a message that inflates to a large size", bomb, 0},
		{"too large while compressed", "\xc2\xfe\x10\x01" + zeros, websocket.CloseMessageTooBig},
		{"too large in fragments", "\x42" + bomb[1:] + "\x80\xfe\x00\x80" + zeros, websocket.CloseMessageTooBig},
		{
			"the bit on a continuation",
			"\x41\x81" + zeros + "\xca\xc0\x81" + zeros + "\x00",
			websocket.CloseProtocolError,
		},
		{
			"the bit on the continuation of a plain message",
			"\x01\x81" + zeros + "x\xc0\x81" + zeros + "\x00",
			websocket.CloseProtocolError,
		},
		{"the bit on a ping", "\xc9\x80" + zeros, websocket.CloseProtocolError},
		{"the bit on a pong", "\xca\x80" + zeros, websocket.CloseProtocolError},
		{"the bit on a close", "\xc8\x80" + zeros, websocket.CloseProtocolError},
		{"another bit", "\xa1\x80" + zeros, websocket.CloseProtocolError},
		{"both bits", "\xe1\x80" + zeros, websocket.CloseProtocolError},
		{"a message inside another", "\x41\x81" + zeros + "\xca\xc1\x80" + zeros, websocket.CloseProtocolError},
	}
	for _, test := range tests {
		for _, size := range []int{1, 3, 1 << 20} {
			in := Reader{Deflated: true}
			first := firstReply(&in, test.sent+ping, size)
			switch {
			case test.code == 0 && string(first) != "\x8a\x01!":
				t.Errorf("%s in pieces of %d: reply %x, want a pong", test.name, size, first)
			case test.code != 0 && (len(first) == 0 || first[0] != finClose || closeCode(first) != test.code):
				t.Errorf("%s in pieces of %d: reply %x, want a close frame with %d", test.name, size, first, test.code)
			}
		}
		var plain Reader
		first := firstReply(&plain, test.sent+ping, 1<<20)
		if compressed := test.sent[0]&rsv1 != 0; compressed && closeCode(first) != websocket.CloseProtocolError {
			t.Errorf("%s, not negotiated: reply %x", test.name, first)
		}
	}
}

// firstReply returns the first reply to input sent in pieces of the given size.
func firstReply(in *Reader, sent string, size int) []byte {
	for left := []byte(sent); len(left) > 0; {
		n := min(size, len(left))
		for p := left[:n]; len(p) > 0; {
			var r Reply
			if p, r = in.Consume(p); r.Frame != nil {
				return r.Frame
			}
		}
		left = left[n:]
	}
	return nil
}
