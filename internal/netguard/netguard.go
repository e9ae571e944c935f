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

// Guard decides which addresses may be dialled: public ones, and those that the operator named. It is immutable and
// safe for concurrent use.
type Guard struct {
	allow []netip.Prefix
}

// New returns a Guard that also lets through the given ranges, each a CIDR ("10.1.0.0/16") or a single address. Where some
// are of no use it returns nil and a [relay.FieldError] of allow_cidrs for each, joined.
func New(allowCIDRs []string) (*Guard, error) {
	g := &Guard{}
	var errs []error
	for i, s := range allowCIDRs {
		p, err := ParseCIDR(s)
		if err != nil {
			errs = append(errs, &relay.FieldError{Field: "allow_cidrs." + strconv.Itoa(i), Problem: "is not usable: " + err.Error()})
		}
		g.allow = append(g.allow, p)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return g, nil
}

// ParseCIDR reads a range as allow_cidrs takes it: a CIDR or a single address.
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

// BlockedError says which address was refused and why. It names no URL.
type BlockedError struct {
	// Address is the address without a port.
	Address string
	// Kind says what it is: "a loopback address".
	Kind string
}

func (e *BlockedError) Error() string {
	return fmt.Sprintf("%s is %s and refused; add it to allow_cidrs if it is meant", e.Address, e.Kind)
}

// Check returns a [BlockedError] for an address that may not be dialled.
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

// CheckHost judges the host of a URL as far as that is possible without asking DNS: a literal address, or a name
// below localhost. Any other name passes; [Guard.Control] judges what it resolves to.
func (g *Guard) CheckHost(host string) error {
	host = strings.Trim(host, "[]")
	if addr, err := netip.ParseAddr(host); err == nil {
		return g.Check(addr)
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	if name != "localhost" && !strings.HasSuffix(name, ".localhost") {
		return nil
	}
	// RFC 6761: these names are loopback everywhere. One allowed family is enough to reach it.
	err := g.Check(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	if err == nil || g.Check(netip.IPv6Loopback()) == nil {
		return nil
	}
	return err
}

// Control is a net.Dialer's Control: it sees the address that is about to be dialled, after DNS.
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
