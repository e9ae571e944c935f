// Package netguard protects the network of the relay against server-side request forgery by sinks. It checks the
// address of every connection after DNS resolution and just before the dial. A name that resolves to an internal
// address is therefore blocked, even if its address changes between a check and the dial.
//
// Protocols and sinks do not belong here. All sinks that dial share this package.
package netguard

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"syscall"

	"github.com/hubrelay/hubrelay/relay"
)

// Guard allows connections to public addresses and to the ranges that the operator configured. It is immutable and safe
// for concurrent use.
type Guard struct {
	allow []netip.Prefix
}

// New returns a Guard that also allows the given ranges. A range is a CIDR ("10.1.0.0/16") or a single address. If some
// ranges are invalid, New returns nil and a joined [relay.FieldError] of allow_cidrs for each.
func New(allowCIDRs []string) (*Guard, error) {
	g := &Guard{}
	var errs []error
	for i, s := range allowCIDRs {
		p, err := ParseCIDR(s)
		if err != nil {
			field := "allow_cidrs." + strconv.Itoa(i)
			errs = append(errs, &relay.FieldError{Field: field, Problem: "is not usable: " + err.Error()})
		}
		g.allow = append(g.allow, p)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return g, nil
}

// ParseCIDR parses an entry of allow_cidrs: a CIDR or a single address.
func ParseCIDR(s string) (netip.Prefix, error) {
	s = strings.TrimSpace(s)
	if addr, err := netip.ParseAddr(s); err == nil {
		addr = addr.Unmap().WithZone("")
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is neither an address range like 10.1.0.0/16 nor an address", s)
	}
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	return p.Masked(), nil
}

// BlockedError reports a blocked address. It contains no URL.
type BlockedError struct {
	// Address is the address without a port.
	Address string
	// Kind describes the address, such as "a loopback address".
	Kind string
}

func (e *BlockedError) Error() string {
	return fmt.Sprintf("%s is %s, which is rejected by default; to allow it, add it to allow_cidrs", e.Address, e.Kind)
}

// Check returns a [BlockedError] if addr is not allowed.
func (g *Guard) Check(addr netip.Addr) error {
	plain := addr.Unmap().WithZone("")
	kind := nonPublicKind(plain)
	if kind == "" {
		return nil
	}
	for _, p := range g.allow {
		if p.Contains(plain) {
			return nil
		}
	}
	return &BlockedError{Address: plain.String(), Kind: kind}
}

// CheckHost checks the host of a URL without DNS: an address, localhost, or a name that ends with .localhost. All other
// names are accepted, and [Guard.Control] checks their addresses.
func (g *Guard) CheckHost(host string) error {
	host = strings.Trim(host, "[]")
	if addr, err := netip.ParseAddr(host); err == nil {
		return g.Check(addr)
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	if name != "localhost" && !strings.HasSuffix(name, ".localhost") {
		return nil
	}
	// RFC 6761: these names always resolve to loopback addresses. One allowed address family is sufficient.
	err := g.Check(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	if err == nil || g.Check(netip.IPv6Loopback()) == nil {
		return nil
	}
	return err
}

// Control is for the field of the same name in net.Dialer. It checks the address after DNS, just before the dial.
func (g *Guard) Control(network, address string, _ syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") && !strings.HasPrefix(network, "udp") {
		return &BlockedError{Address: network, Kind: "not an internet address"}
	}
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return &BlockedError{Address: "an address that cannot be read", Kind: "not an internet address"}
	}
	return g.Check(ap.Addr())
}
