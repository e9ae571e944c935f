package client

import (
	"cmp"
	"context"
	"crypto/fips140"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/gorilla/websocket"
)

// connect gets a token and opens the websocket as described in docs/specification.md.
func (l *listener) connect(ctx context.Context) (*websocket.Conn, error) {
	l.gotToken = false
	token, header, err := l.client.fetchToken(ctx)
	if err != nil {
		return nil, err
	}
	if l.options.OnToken != nil {
		if l.onTokenErr = l.options.OnToken(header); l.onTokenErr != nil {
			return nil, l.onTokenErr
		}
	}
	l.gotToken = true
	address, err := l.client.endpointURL(notifications)
	if err != nil {
		return nil, err
	}
	address.Scheme = "ws" + strings.TrimPrefix(address.Scheme, "http")
	query := address.Query()
	query.Set("token", token)
	query.Set("cursor", "true")
	query.Set("after", cmp.Or(l.cursor, cursorNow))
	if l.options.Metadata {
		query.Set("metadata", "true")
	}
	if len(l.options.Topics) > 0 {
		query.Set("topics", strings.Join(l.options.Topics, ","))
	}
	address.RawQuery = query.Encode()
	address.User = nil // gorilla/websocket would send it instead of the key
	upgradeHeader := l.client.requestHeader()
	if isHeaderSafe(token) {
		upgradeHeader.Set("x-service-token", token)
	}
	var ws *websocket.Conn
	var response *http.Response
	// RFC 6455 requires SHA-1 for Sec-WebSocket-Accept, not for security. GODEBUG=fips140=only would panic. TLS
	// still negotiates only approved algorithms.
	dialer, limit := l.client.newDialer()
	fips140.WithoutEnforcement(func() {
		ws, response, err = dialer.DialContext(ctx, address.String(), upgradeHeader) //nolint:bodyclose // closed below
	})
	if err == nil {
		limit.removeLimit()
		return ws, nil
	}
	if response == nil {
		return nil, fmt.Errorf("open the stream: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	text, _ := io.ReadAll(response.Body) // gorilla/websocket stores at most the first KiB
	responseErr := l.client.parseError(response, text, token)
	if responseErr.Status == http.StatusUnauthorized {
		l.tokenRejections++
	}
	if isCursorRejection(responseErr, l.cursor) {
		return nil, fmt.Errorf("open the stream: %w", &cursorError{responseErr})
	}
	return nil, fmt.Errorf("open the stream: %w", responseErr)
}

// isHeaderSafe reports whether a token, which is an opaque string, may be sent in a header.
func isHeaderSafe(token string) bool {
	return strings.IndexFunc(token, func(r rune) bool { return r < ' ' || r > '~' }) < 0
}

// newDialer returns a dialer with the settings of the HTTP client, for one connection. The caller calls removeLimit after the
// handshake.
func (c *Client) newDialer() (*websocket.Dialer, *upgradeLimit) {
	d := &websocket.Dialer{
		HandshakeTimeout: handshakeTimeout, Proxy: http.ProxyFromEnvironment,
		Jar: c.httpClient().Jar, EnableCompression: true,
	}
	transport := c.httpClient().Transport
	if transport == nil {
		transport = http.DefaultTransport
	}
	limit := new(upgradeLimit)
	limit.left.Store(maxUpgradeBytes)
	d.NetDialContext = limit.limitConns(new(net.Dialer).DialContext)
	t, ok := transport.(*http.Transport)
	if !ok {
		return d, limit
	}
	d.Proxy = t.Proxy
	if t.DialContext != nil {
		d.NetDialContext = limit.limitConns(t.DialContext)
	}
	if t.DialTLSContext != nil {
		d.NetDialTLSContext = limit.limitConns(t.DialTLSContext)
	}
	if t.TLSClientConfig != nil {
		d.TLSClientConfig = t.TLSClientConfig.Clone()
		d.TLSClientConfig.NextProtos = []string{"http/1.1"} // the transport adds h2, which does not support the upgrade
	}
	return d, limit
}

// upgradeLimit limits the bytes that are read before the handshake of a websocket is complete. gorilla/websocket would read
// a header without an end. All methods are safe for concurrent use.
type upgradeLimit struct{ left atomic.Int64 }

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// limitConns returns a function that limits the bytes of the connections of dial.
func (l *upgradeLimit) limitConns(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &upgradeConn{conn, l}, nil
	}
}

func (l *upgradeLimit) removeLimit() { l.left.Store(math.MaxInt64) }

type upgradeConn struct {
	net.Conn
	limit *upgradeLimit
}

// Read implements net.Conn.
func (c *upgradeConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.limit.left.Add(-int64(n)) < 0 {
		return 0, fmt.Errorf("the server sent more than %d KiB before the upgrade to a websocket was complete", maxUpgradeBytes>>10)
	}
	return n, err
}
