// Package clientaddr finds the address of a client behind trusted proxies.
package clientaddr

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// DefaultHeader is the header in which proxies name the client by default.
const DefaultHeader = "X-Forwarded-For"

// Proxies are trusted proxies. The zero value trusts none.
type Proxies struct {
	Networks []netip.Prefix
	// Header is the only header of a trusted proxy that names the client: Forwarded (RFC 7239), or a header with a list of
	// addresses. Proxies pass other headers on as the client wrote them. Empty means [DefaultHeader].
	Header string
}

// ParseNetworks parses networks such as 10.0.0.0/8, and single addresses.
func ParseNetworks(list []string) ([]netip.Prefix, error) {
	var p []netip.Prefix
	for _, s := range list {
		addr, err := netip.ParseAddr(s)
		if err == nil {
			p = append(p, netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen()))
			continue
		}
		network, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("%q is neither an address nor a network", s)
		}
		p = append(p, network.Masked())
	}
	return p, nil
}

// Contains reports whether an address belongs to a trusted proxy.
func (p Proxies) Contains(addr netip.Addr) bool {
	return slices.ContainsFunc(p.Networks, func(network netip.Prefix) bool { return network.Contains(addr.Unmap()) })
}

// Client returns the address of the client that sent r. If the connection comes from a trusted proxy, it is the last
// address in the header that is not a trusted proxy. Entries before that one were written by the client and are ignored. A proxy that names no client is itself the client. The result is invalid if r has no
// address, such as over a unix socket.
func (p Proxies) Client(r *http.Request) netip.Addr {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	client := peer.Addr().Unmap()
	if !p.Contains(client) {
		return client
	}
	for _, hop := range slices.Backward(p.hops(r.Header)) {
		addr, ok := parseHop(hop)
		if !ok {
			return client // this client may have made up everything before it
		}
		if client = addr; !p.Contains(addr) {
			return client
		}
	}
	return client
}

// hops returns the addresses in the header, the nearest proxy last.
func (p Proxies) hops(h http.Header) []string {
	name := http.CanonicalHeaderKey(cmp.Or(p.Header, DefaultHeader))
	list := strings.Split(strings.Join(h[name], ","), ",")
	if name == "Forwarded" {
		for i, element := range list {
			list[i] = forwardedFor(element)
		}
	}
	return list
}

// forwardedFor returns the value of the parameter for in an element of Forwarded, or "".
func forwardedFor(element string) string {
	for pair := range strings.SplitSeq(element, ";") {
		if name, value, _ := strings.Cut(strings.TrimSpace(pair), "="); strings.EqualFold(name, "for") {
			return strings.Trim(value, `"`)
		}
	}
	return ""
}

// parseHop parses an address with an optional port. IPv6 addresses with a port are in brackets.
func parseHop(s string) (netip.Addr, bool) {
	s = strings.TrimSpace(s)
	if withPort, err := netip.ParseAddrPort(s); err == nil {
		return withPort.Addr().Unmap(), true
	}
	addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"))
	return addr.Unmap(), err == nil
}

// Group returns the network that counts as one client in limits: the address itself, or its /64 for IPv6, because a
// host usually has all addresses of one.
func Group(addr netip.Addr) netip.Prefix {
	addr = addr.Unmap().WithZone("")
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	prefix, _ := addr.Prefix(bits) // fails only for an invalid address, which has no bits
	return prefix
}
