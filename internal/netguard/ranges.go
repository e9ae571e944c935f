package netguard

import "net/netip"

type addrBlock struct {
	prefix      netip.Prefix
	description string
}

func addrBlocks(kind string, cidrs ...string) []addrBlock {
	out := make([]addrBlock, len(cidrs))
	for i, c := range cidrs {
		out[i] = addrBlock{netip.MustParsePrefix(c), kind}
	}
	return out
}

// The special-purpose address registries of IANA (RFC 6890 and its successors). The first match determines the
// description.
var (
	special4 = concatBlocks(
		addrBlocks("a loopback address", "127.0.0.0/8"),
		addrBlocks("an unspecified address", "0.0.0.0/8"),
		addrBlocks("a private address", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),
		addrBlocks("a carrier's private address", "100.64.0.0/10"),
		// 168.63.129.16 serves DNS and credentials to virtual machines in Azure.
		addrBlocks("a link-local or metadata address", "169.254.0.0/16", "168.63.129.16/32"),
		addrBlocks("a multicast address", "224.0.0.0/4"),
		addrBlocks("a documentation or benchmark address",
			"192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "198.18.0.0/15"),
		addrBlocks("a reserved address", "192.0.0.0/24", "192.88.99.0/24", "240.0.0.0/4"),
	)
	special6 = concatBlocks(
		addrBlocks("a loopback address", "::1/128"),
		addrBlocks("an unspecified address", "::/128"),
		addrBlocks("a private address", "fc00::/7", "fec0::/10"),
		addrBlocks("a link-local address", "fe80::/10"),
		addrBlocks("a multicast address", "ff00::/8"),
		addrBlocks("a translated address", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "::/96"),
		addrBlocks("a documentation or benchmark address", "2001:db8::/32", "3fff::/20", "2001:2::/48"),
		addrBlocks("a reserved address", "2001::/23"),
	)
	// Addresses outside this range are unassigned or have special purposes.
	global6 = netip.MustParsePrefix("2000::/3")
)

func concatBlocks(lists ...[]addrBlock) []addrBlock {
	var out []addrBlock
	for _, l := range lists {
		out = append(out, l...)
	}
	return out
}

// nonPublicKind describes a non-public address. It returns "" for a public one. addr must be unmapped and have no zone.
func nonPublicKind(addr netip.Addr) string {
	if !addr.IsValid() {
		return "not an address"
	}
	list := special6
	if addr.Is4() {
		list = special4
	}
	for _, b := range list {
		if b.prefix.Contains(addr) {
			return b.description
		}
	}
	if addr.Is6() && !global6.Contains(addr) {
		return "a reserved address"
	}
	return ""
}
