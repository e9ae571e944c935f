package clients

import (
	"net/http"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

const (
	extensionHeader = "Sec-WebSocket-Extensions"
	deflateResponse = "permessage-deflate; server_no_context_takeover; client_no_context_takeover"
)

// The response has an extension header only if both sides want compression.
func TestCompressionIsNegotiated(t *testing.T) {
	t.Parallel()
	on, off := startNode(t, Options{Compression: Compression{Enabled: true}}, nil), startNode(t, Options{}, nil)
	offering := strings.Replace(
		handshake,
		"Host: x",
		"Host: x\r\nsec-websocket-extensions: permessage-deflate; server_max_window_bits=15",
		1,
	)
	for _, test := range []struct {
		node *node
		sent string
		want []string
	}{
		{on, offering, []string{deflateResponse + "; server_max_window_bits=15"}},
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
	testkit.WaitForValue(t, "one client that understands compression", 1, func() int { return on.deflated("clients") })
	if off.deflated("clients") != 0 {
		t.Error("a client negotiated what is off")
	}
}
