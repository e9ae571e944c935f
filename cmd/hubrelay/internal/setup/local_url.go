package setup

import (
	"net"
	"net/netip"
)

// LocalURL returns the URL of a listener for clients on this machine.
func LocalURL(scheme, listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return scheme + "://" + listen
	}
	addr, err := netip.ParseAddr(host)
	switch {
	case host == "", err == nil && addr.IsUnspecified() && addr.Is4():
		host = "127.0.0.1"
	case err == nil && addr.IsUnspecified():
		host = "::1"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}
