package transport

import (
	"net/http"
	"strings"
	"testing"
)

func TestAcceptDeflate(t *testing.T) {
	t.Parallel()
	const yes, window = deflateResponse, deflateResponse + "; server_max_window_bits=15"
	tests := map[string]string{
		"":                   "",
		"permessage-deflate": yes,
		"permessage-deflate; client_max_window_bits":                                                yes, // Chromium, ws, websockets
		"permessage-deflate; server_no_context_takeover; client_no_context_takeover":                yes, // gorilla
		" permessage-deflate ;\tclient_max_window_bits = 10 ":                                       yes,
		"permessage-deflate; client_max_window_bits=\"1\\0\"":                                       yes,
		"permessage-deflate; server_max_window_bits=15":                                             window,
		"permessage-deflate; server_max_window_bits=\"15\"":                                         window,
		"permessage-deflate; server_max_window_bits=10; client_max_window_bits, permessage-deflate": yes, // the second will do
		"permessage-deflate; future, , x-other; a=b; c, permessage-deflate":                         yes,
		"x-webkit-deflate-frame, permessage-bzip2":                                                  "",
		// Unsupported window sizes.
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
		"permessage-deflate; unknown_parameter":                                               "",
		"permessage-deflate; Server_No_Context_Takeover":                                      "",
		"permessage-deflate; unknown_parameter, permessage-deflate; client_max_window_bits=9": yes,
		// An invalid header, even with a valid offer.
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
		if got := AcceptDeflate(http.Header{"Sec-Websocket-Extensions": {header}}); got != want {
			t.Errorf("%.100q got %q, want %q", header, got, want)
		}
	}
	several := http.Header{
		"Sec-Websocket-Extensions": {"x-other", "permessage-deflate; server_max_window_bits=9", "permessage-deflate"},
	}
	if got := AcceptDeflate(several); got != yes {
		t.Errorf("several headers are answered by %q", got)
	}
}

// FuzzAcceptDeflate checks that the response is one we support, and only sent if the client offered the extension.
func FuzzAcceptDeflate(f *testing.F) {
	for _, seed := range []string{
		"permessage-deflate; client_max_window_bits",
		"permessage-deflate; server_max_window_bits=\"1\\5\", x;y=z", ",;=\"\\",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, header string) {
		got := AcceptDeflate(http.Header{"Sec-Websocket-Extensions": {header}})
		if got == "" {
			return
		}
		if got != deflateResponse && got != deflateResponse+"; server_max_window_bits=15" {
			t.Errorf("%q got %q", header, got)
		}
		if !strings.Contains(header, deflateName) {
			t.Errorf("%q contains no offer", header)
		}
	})
}
