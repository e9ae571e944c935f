package netguard

import (
	"context"
	"errors"
	"net/netip"
	"testing"
)

// zone resolves every name to the same addresses.
type zone []string

func (z zone) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	if z == nil {
		return nil, errors.New("no such host")
	}
	addrs := make([]netip.Addr, len(z))
	for i, s := range z {
		addrs[i] = netip.MustParseAddr(s)
	}
	return addrs, nil
}

func TestResolve(t *testing.T) {
	g, err := New([]string{"10.1.0.0/16"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		host    string
		zone    zone
		want    string // the first allowed address
		refused bool
	}{
		{"example.com", zone{"8.8.8.8"}, "8.8.8.8", false},
		{"example.com", zone{"127.0.0.1", "8.8.8.8"}, "8.8.8.8", false},
		{"example.com", zone{"::ffff:8.8.8.8"}, "8.8.8.8", false},
		{"example.com", zone{"10.1.2.3"}, "10.1.2.3", false},
		{"example.com", zone{"127.0.0.1", "::1"}, "", true},
		{"example.com", zone{"::ffff:169.254.169.254"}, "", true},
		{"example.com", zone{"64:ff9b::7f00:1"}, "", true},
		{"example.com", zone{}, "", true},
		{"example.com", nil, "", false},
		{"8.8.4.4", nil, "8.8.4.4", false},
		{"[2606:4700::1111]", nil, "2606:4700::1111", false},
		{"[::1]", zone{"8.8.8.8"}, "", true},
		{"[fe80::1%eth0]", zone{"8.8.8.8"}, "", true},
		{"[::ffff:7f00:1]", zone{"8.8.8.8"}, "", true},
		{"192.168.0.1", zone{"8.8.8.8"}, "", true},
	} {
		addrs, err := g.Resolve(t.Context(), c.zone, c.host)
		var r *BlockedError
		switch {
		case c.want != "" && (err != nil || addrs[0].String() != c.want):
			t.Errorf("%s %v: %v, %v, want %s", c.host, c.zone, addrs, err, c.want)
		case c.want == "" && (err == nil || errors.As(err, &r) != c.refused):
			t.Errorf("%s %v: %v, %v, want refused %v", c.host, c.zone, addrs, err, c.refused)
		}
	}
}
