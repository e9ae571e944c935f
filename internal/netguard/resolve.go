package netguard

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// Resolver resolves names. *net.Resolver implements it.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Resolve returns the allowed addresses of host, at least one, or a [BlockedError] if all are blocked. host is the host
// of a URL: a name, or an address with or without brackets. Resolve blocks during the DNS lookup.
//
// It is for connections that another program opens, such as a proxy. The caller must pass on an address instead of the
// name. Otherwise the proxy could resolve the name to an address that was not checked.
func (g *Guard) Resolve(ctx context.Context, r Resolver, host string) ([]netip.Addr, error) {
	host = strings.Trim(host, "[]")
	if addr, err := netip.ParseAddr(host); err == nil {
		return g.filterAllowed([]netip.Addr{addr})
	}
	if r == nil {
		r = net.DefaultResolver
	}
	addrs, err := r.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("resolve the host: %w", err)
	}
	return g.filterAllowed(addrs)
}

// filterAllowed returns the allowed addresses, unmapped and without zones.
func (g *Guard) filterAllowed(addrs []netip.Addr) ([]netip.Addr, error) {
	var allowed []netip.Addr
	var first error
	for _, addr := range addrs {
		if err := g.Check(addr); err == nil {
			allowed = append(allowed, addr.Unmap().WithZone(""))
		} else if first == nil {
			first = err
		}
	}
	switch {
	case len(allowed) > 0:
		return allowed, nil
	case first == nil:
		return nil, &BlockedError{Address: "a host without addresses", Kind: "not an internet address"}
	}
	return nil, first
}
