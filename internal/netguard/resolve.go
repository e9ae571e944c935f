package netguard

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Resolver asks DNS. *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Resolve returns the addresses of host that may be dialled, at least one, or a [BlockedError] where all are refused.
// host is the host of a URL: a name, or an address with or without brackets. It blocks while r asks DNS.
//
// It is for connections that somebody else makes, such as a proxy: who hands on the returned address rather than the
// name is sure that what was judged is what gets dialled.
func (g *Guard) Resolve(ctx context.Context, r Resolver, host string) ([]netip.Addr, error) {
	host = strings.Trim(host, "[]")
	if addr, err := netip.ParseAddr(host); err == nil {
		return g.allowed([]netip.Addr{addr})
	}
	if r == nil {
		r = net.DefaultResolver
	}
	addrs, err := r.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("resolve the host: %w", err)
	}
	return g.allowed(addrs)
}

// allowed leaves out what is refused; its result is unmapped and without zone.
func (g *Guard) allowed(addrs []netip.Addr) ([]netip.Addr, error) {
	var good []netip.Addr
	var first error
	for _, addr := range addrs {
		if err := g.Check(addr); err == nil {
			good = append(good, addr.Unmap().WithZone(""))
		} else if first == nil {
			first = err
		}
	}
	switch {
	case len(good) > 0:
		return good, nil
	case first == nil:
		return nil, &BlockedError{Address: "a host without addresses", Kind: "not an internet address"}
	}
	return nil, first
}
