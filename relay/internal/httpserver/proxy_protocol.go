package httpserver

import (
	"net"
	"net/netip"

	"github.com/pires/go-proxyproto"
)

// newProxyListener accepts headers of the PROXY protocol (versions 1 and 2) from trusted proxies. Connections of others
// are not wrapped, so such a header is not HTTP and is rejected.
func newProxyListener(l net.Listener, o Options) net.Listener {
	return &proxyproto.Listener{
		Listener: l, ReadHeaderTimeout: o.ReadHeaderTimeout,
		ConnPolicy: func(c proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) {
			peer, err := netip.ParseAddrPort(c.Upstream.String())
			if err == nil && o.TrustedProxies.Contains(peer.Addr()) {
				return proxyproto.USE, nil
			}
			return proxyproto.SKIP, nil
		},
	}
}

// rawConn returns a connection without the wrappers of this package. net/http has read everything that they buffer.
func rawConn(conn net.Conn) net.Conn {
	if plain, ok := conn.(*envelopeConn); ok {
		conn = plain.Conn
	}
	if proxied, ok := conn.(*proxyproto.Conn); ok {
		conn = proxied.Raw()
	}
	return conn
}
