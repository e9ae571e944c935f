package hub

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

// closeCode reads the code of a close frame that a server sends.
func closeCode(frame []byte) int {
	if len(frame) < 4 {
		return closeNoStatus
	}
	return int(binary.BigEndian.Uint16(frame[2:]))
}

// A close frame of ours has the same code as gorilla's, and every pong the same bytes, whatever the client sends and in
// whatever pieces it comes.
func FuzzIncoming(f *testing.F) {
	for _, sent := range []string{
		"\x81\x85abcdxxxxx\x89\x82abcd\x01\x02\x8a\x80abcd",         // text, ping, pong
		"\x01\x80abcd\x89\x80abcd\x80\x81abcdx\x82\xfe\x00\x80abcd", // a ping between fragments, a long message cut off
		"\x88\x82\x00\x00\x00\x00\x03\xe8\x81\x80abcd",              // close 1000 with following bytes
		"\x88\x80abcd",                                              // close without a code
		"\x88\x82\x00\x00\x00\x00\x03\xed",                          // close 1005, which must not be sent
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
		var in frameReader
		var got [][]byte
		for left := sent; len(left) > 0 && in.closeReason == ""; {
			n := min(len(left), int(piece)+1)
			for p := left[:n]; len(p) > 0; {
				var r controlReply
				if p, r = in.consume(p); r.frame != nil {
					got = append(got, r.frame)
				}
			}
			left = left[n:]
		}
		want := gorillasReplies(t, sent)
		for i, frame := range got {
			if closeCode(frame) == websocket.CloseMessageTooBig && frame[0] == finClose {
				return // gorilla does not add up fragments, and closes silently on absurd lengths
			}
			if i >= len(want) {
				t.Fatalf("%x was answered with %x, by gorilla with %x", sent, got, want)
			}
			if frame[0] == finClose && closeCode(frame) == websocket.CloseProtocolError {
				frame, want[i] = frame[:4], want[i][:4]
				frame[1] = want[i][1]
			}
			if !bytes.Equal(frame, want[i]) {
				t.Fatalf("%x was answered with %x, by gorilla with %x", sent, got, want)
			}
		}
		if len(got) != len(want) {
			t.Fatalf("%x was answered with %x, by gorilla with %x", sent, got, want)
		}
	})
}

// gorillasReplies returns gorilla's replies to a client's input.
func gorillasReplies(t *testing.T, sent []byte) [][]byte {
	t.Helper()
	conn := &played{Reader: bytes.NewReader(sent)}
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	r.Header.Set("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")
	ws, err := (&websocket.Upgrader{}).Upgrade(&hijackable{httptest.NewRecorder(), conn}, plainHandshake(r), nil)
	if err != nil {
		t.Fatal(err)
	}
	ws.SetReadLimit(maxClientMessage)
	for err == nil {
		_, _, err = ws.NextReader()
	}
	if !strings.HasPrefix(string(conn.written[0]), "HTTP/1.1 101 ") {
		t.Fatalf("gorilla began with %q", conn.written[0])
	}
	return conn.written[1:]
}

// played is a connection whose client has sent everything already.
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
