package hub

import (
	"net/http"
	"strings"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

func TestOffersOfCompression(t *testing.T) {
	t.Parallel()
	const yes, window = deflateAnswer, deflateAnswer + "; server_max_window_bits=15"
	tests := map[string]string{
		"":                   "",
		"permessage-deflate": yes,
		// Chromium, ws, websockets
		"permessage-deflate; client_max_window_bits":                                 yes,
		"permessage-deflate; server_no_context_takeover; client_no_context_takeover": yes, // gorilla
		" permessage-deflate ;\tclient_max_window_bits = 10 ":                        yes,
		"permessage-deflate; client_max_window_bits=\"1\\0\"":                        yes,
		"permessage-deflate; server_max_window_bits=15":                              window,
		"permessage-deflate; server_max_window_bits=\"15\"":                          window,
		// the second offer is acceptable
		"permessage-deflate; server_max_window_bits=10; client_max_window_bits, permessage-deflate": yes,
		"permessage-deflate; future, , x-other; a=b; c, permessage-deflate":                         yes,
		"x-webkit-deflate-frame, permessage-bzip2":                                                  "",
		// Windows that we do not have.
		"permessage-deflate; server_max_window_bits=8":  "",
		"permessage-deflate; server_max_window_bits=14": "",
		// Invalid values.
		"permessage-deflate; server_max_window_bits":                                          "",
		"permessage-deflate; server_max_window_bits=7":                                        "",
		"permessage-deflate; server_max_window_bits=16":                                       "",
		"permessage-deflate; server_max_window_bits=015":                                      "",
		"permessage-deflate; server_max_window_bits=+15":                                      "",
		"permessage-deflate; client_max_window_bits=7":                                        "",
		"permessage-deflate; client_max_window_bits=08":                                       "",
		"permessage-deflate; client_max_window_bits=16":                                       "",
		"permessage-deflate; server_no_context_takeover=true":                                 "",
		"permessage-deflate; client_no_context_takeover=1":                                    "",
		"permessage-deflate; server_no_context_takeover; server_no_context_takeover":          "",
		"permessage-deflate; client_max_window_bits=10; client_max_window_bits":               "",
		"permessage-deflate; server_max_window_bits=15; server_max_window_bits=15":            "",
		"permessage-deflate; nobody_knows_this":                                               "",
		"permessage-deflate; Server_No_Context_Takeover":                                      "",
		"permessage-deflate; nobody_knows_this, permessage-deflate; client_max_window_bits=9": yes,
		// Invalid headers.
		"permessage-deflate, ;":                                    "",
		"permessage-deflate;":                                      "",
		"permessage-deflate x":                                     "",
		"permessage-deflate; client_max_window_bits=":              "",
		"permessage-deflate; client_max_window_bits=\"\"":          "",
		"permessage-deflate; client_max_window_bits=\"10":          "",
		"permessage-deflate; client_max_window_bits=\"1 0\"":       "",
		"permessage-deflate, \"permessage-deflate\"":               "",
		"permessage-deflate/1":                                     "",
		strings.Repeat("x;y,", 10_000) + "permessage-deflate":      yes,
		strings.Repeat(",", 10_000) + "permessage-deflate":         yes,
		"permessage-deflate" + strings.Repeat("; a", 10_000) + "é": "",
	}
	for header, want := range tests {
		if got := acceptDeflate(http.Header{"Sec-Websocket-Extensions": {header}}); got != want {
			t.Errorf("%.100q is answered by %q, want %q", header, got, want)
		}
	}
	several := http.Header{
		"Sec-Websocket-Extensions": {"x-other", "permessage-deflate; server_max_window_bits=9", "permessage-deflate"},
	}
	if got := acceptDeflate(several); got != yes {
		t.Errorf("several headers are answered by %q", got)
	}
}

// Any offer gets a supported answer, and only if it names the extension.
func FuzzOffers(f *testing.F) {
	for _, seed := range []string{
		"permessage-deflate; client_max_window_bits", "permessage-deflate; server_max_window_bits=\"1\\5\", x;y=z",
		",;=\"\\",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, header string) {
		got := acceptDeflate(http.Header{"Sec-Websocket-Extensions": {header}})
		if got == "" {
			return
		}
		if got != deflateAnswer && got != deflateAnswer+"; server_max_window_bits=15" {
			t.Errorf("%q is answered by %q", header, got)
		}
		if !strings.Contains(header, deflateName) {
			t.Errorf("%q offers nothing", header)
		}
	})
}

// Compression is used only if both sides want it, and the answer is one header.
func TestCompressionIsNegotiated(t *testing.T) {
	t.Parallel()
	on, off := startNode(t, Options{Compression: Compression{Enabled: true}}, nil), startNode(t, Options{}, nil)
	offering := strings.Replace(handshake, "Host: x",
		"Host: x\r\nsec-websocket-extensions: permessage-deflate; server_max_window_bits=15", 1)
	for _, test := range []struct {
		node *node
		sent string
		want []string
	}{
		{on, offering, []string{deflateAnswer + "; server_max_window_bits=15"}},
		{on, handshake, nil},
		{on, strings.Replace(offering, "=15", "=12", 1), nil},
		{off, offering, nil},
	} {
		_, _, answer := talk(t, test.node, test.sent)
		if got := answer.Header.Values(extensionHeader); answer.StatusCode != http.StatusSwitchingProtocols ||
			strings.Join(got, "|") != strings.Join(test.want, "|") {
			t.Errorf("%q is answered %s with %q, want %q", test.sent, answer.Status, got, test.want)
		}
	}
	testkit.WaitFor(t, "one client that understands compression", func() bool { return on.deflated("clients") == 1 })
	if off.deflated("clients") != 0 {
		t.Error("a client negotiated what is off")
	}
}

// Compressed messages of clients are skipped without decompression. Their bit is invalid in other frames.
func TestClientsMayCompress(t *testing.T) {
	t.Parallel()
	const ping, zeros = "\x89\x81\x00\x00\x00\x00!", "\x00\x00\x00\x00"
	bomb := "\xc2\xfe\x0f\xf0" + zeros + strings.Repeat("\x00", 0xff0)
	tests := []struct {
		name, sent string
		code       int // 0 for a pong
	}{
		{"a message", "\xc1\x83" + zeros + "\xca\x49\x00", 0},
		{"one that is no deflate", "\xc1\x83" + zeros + "\xff\xff\xff", 0},
		{"not compressed", "\x81\x81" + zeros + "x", 0},
		{"fragments", "\x41\x81" + zeros + "\xca\x00\x81" + zeros + "\x49\x80\x81" + zeros + "\x00", 0},
		{"fragments around a ping", "\x41\x81" + zeros + "\xca\x8a\x80" + zeros + "\x80\x82" + zeros + "\x49\x00", 0},
		{"what may be large inside", bomb, 0},
		{"too large as it comes", "\xc2\xfe\x10\x01" + zeros, websocket.CloseMessageTooBig},
		{"too large in fragments", "\x42" + bomb[1:] + "\x80\xfe\x00\x80" + zeros, websocket.CloseMessageTooBig},
		{
			"the bit on a continuation", "\x41\x81" + zeros + "\xca\xc0\x81" + zeros + "\x00",
			websocket.CloseProtocolError,
		},
		{
			"the bit on the continuation of a plain message", "\x01\x81" + zeros + "x\xc0\x81" + zeros + "\x00",
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
			in := frameReader{deflated: true}
			first := firstReply(&in, test.sent+ping, size)
			switch {
			case test.code == 0 && string(first) != "\x8a\x01!":
				t.Errorf("%s in pieces of %d is answered %x, want a pong", test.name, size, first)
			case test.code != 0 && (len(first) == 0 || first[0] != finClose || closeCode(first) != test.code):
				t.Errorf("%s in pieces of %d is answered %x, want a close frame with %d", test.name, size, first,
					test.code)
			}
		}
		var plain frameReader
		first := firstReply(&plain, test.sent+ping, 1<<20)
		if compressed := test.sent[0]&rsv1 != 0; compressed && closeCode(first) != websocket.CloseProtocolError {
			t.Errorf("%s, not negotiated, is answered %x", test.name, first)
		}
	}
}

// firstReply is the first frame that answers what is sent in pieces of that size.
func firstReply(in *frameReader, sent string, size int) []byte {
	for left := []byte(sent); len(left) > 0; {
		n := min(size, len(left))
		for p := left[:n]; len(p) > 0; {
			var r controlReply
			if p, r = in.consume(p); r.frame != nil {
				return r.frame
			}
		}
		left = left[n:]
	}
	return nil
}
