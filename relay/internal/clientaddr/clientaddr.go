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
// address in the header that is not a trusted proxy. Entries before that one were written by the client and are ignored. A
// proxy that sends no header is itself the client. The result is invalid if a trusted proxy names a client without a
// readable address, or if r has no address, such as over a unix socket. An invalid address belongs to no network.
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
		if client = parseHop(hop); !p.Contains(client) {
			return client
		}
	}
	return client
}

// hops returns the addresses in the header, the nearest proxy last.
func (p Proxies) hops(h http.Header) []string {
	name := http.CanonicalHeaderKey(cmp.Or(p.Header, DefaultHeader))
	var list []string
	for _, line := range h[name] {
		if name == "Forwarded" {
			list = append(list, forwardedFor(line)...)
		} else {
			list = append(list, strings.Split(line, ",")...)
		}
	}
	return list
}

// forwardedFor returns the value of the parameter for in each element of a Forwarded header (RFC 7239, section 4), or "".
// Separators in quoted values count as text, because a proxy may quote text of the client, such as its Host header.
func forwardedFor(line string) []string {
	var list []string
	for _, element := range splitUnquoted(line, ',') {
		value := ""
		for _, pair := range splitUnquoted(element, ';') {
			name, v, _ := strings.Cut(strings.TrimSpace(pair), "=")
			if strings.EqualFold(name, "for") {
				value = strings.Trim(v, `"`)
			}
		}
		list = append(list, value)
	}
	return list
}

// splitUnquoted splits s at each separator outside of quoted strings. An unterminated quoted string makes the result one
// empty text, because its end is unknown.
func splitUnquoted(s string, separator byte) []string {
	var list []string
	begin, quoted := 0, false
	for i := 0; i < len(s); i++ {
		switch {
		case quoted && s[i] == '\\':
			i++
		case s[i] == '"':
			quoted = !quoted
		case s[i] == separator && !quoted:
			list = append(list, s[begin:i])
			begin = i + 1
		}
	}
	if quoted {
		return []string{""}
	}
	return append(list, s[begin:])
}

// parseHop parses an address with an optional port. IPv6 addresses with a port are in brackets. The result is invalid for
// any other text.
func parseHop(s string) netip.Addr {
	s = strings.TrimSpace(s)
	if withPort, err := netip.ParseAddrPort(s); err == nil {
		return withPort.Addr().Unmap()
	}
	addr, _ := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"))
	return addr.Unmap()
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
