package netguard

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	none, err := New(nil)
	if err != nil {
		t.Fatal(err)
	}
	refused := []string{
		"127.0.0.1", "127.255.0.3", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
		"100.64.0.1", "100.127.255.255", "169.254.169.254", "168.63.129.16", "169.254.0.1", "224.0.0.1", "239.1.1.1",
		"255.255.255.255",
		"240.0.0.1", "192.0.0.8", "192.0.2.1", "198.18.0.1",
		"198.19.255.255", "198.51.100.7", "203.0.113.9", "192.88.99.1",
		"::", "::1", "::ffff:127.0.0.1", "::ffff:10.1.2.3", "::127.0.0.1",
		"fe80::1", "fe80::1%lo", "fec0::1", "fc00::1", "fd00:ec2::254",
		"ff02::1", "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::", "2001::1",
		"2001:0:1::", "2001:db8::1", "3fff::1", "2001:2::1",
		"100::1", "5f00::1", "4000::1", "2001:10::1",
	}
	for _, s := range refused {
		err := none.Check(netip.MustParseAddr(s))
		var r *BlockedError
		if !errors.As(err, &r) || !strings.Contains(err.Error(), "allow_cidrs") {
			t.Errorf("Check(%s) = %v, want refusal", s, err)
		}
	}
	for _, s := range []string{
		"1.1.1.1", "8.8.8.8", "172.15.0.1", "172.32.0.1", "100.63.255.255", "100.128.0.0", "192.0.1.1", "198.20.0.1",
		"2606:4700::1111", "2a00:1450:4001::1", "2001:4860:4860::8888", "::ffff:8.8.8.8", "2003::1",
	} {
		if err := none.Check(netip.MustParseAddr(s)); err != nil {
			t.Errorf("Check(%s) = %v, want nil", s, err)
		}
	}
}

func TestCheck_AllowedRanges(t *testing.T) {
	g, err := New([]string{"127.0.0.0/8", "::1", "::ffff:10.1.0.0/112", " 192.168.7.7 ", "64:ff9b::/96"})
	if err != nil {
		t.Fatal(err)
	}
	for s, want := range map[string]bool{
		"127.0.0.1": true, "::ffff:127.9.9.9": true, "::1": true,
		"10.1.2.3": true, "10.2.0.1": false, "192.168.7.7": true,
		"192.168.7.8": false, "64:ff9b::1": true, "169.254.169.254": false, "9.9.9.9": true,
	} {
		if got := g.Check(netip.MustParseAddr(s)) == nil; got != want {
			t.Errorf("allowed(%s) = %v, want %v", s, got, want)
		}
	}
	for _, bad := range []string{"", "10.0.0.0/33", "localhost", "10.0.0", "10.0.0.0-10.0.0.9"} {
		if _, err := New([]string{bad}); err == nil {
			t.Errorf("New(%q) succeeded", bad)
		}
	}
}

func TestCheckHost(t *testing.T) {
	none, _ := New(nil)
	loop, _ := New([]string{"::1/128"})
	for host, want := range map[string]bool{
		"example.com": true, "127.0.0.1": false, "[::1]": false, "::1": false, "localhost": false, "LocalHost.": false,
		"a.localhost": false, "notlocalhost": true, "8.8.8.8": true,
	} {
		if got := none.CheckHost(host) == nil; got != want {
			t.Errorf("CheckHost(%s) passed = %v, want %v", host, got, want)
		}
	}
	if err := loop.CheckHost("localhost"); err != nil {
		t.Errorf("localhost with ::1 allowed: %v", err)
	}
}

// A name that resolves to an internal address is blocked.
func TestControl_ChecksAddressAfterDNS(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	g, _ := New(nil)
	d := net.Dialer{Control: g.Control}
	_, err = d.DialContext(context.Background(), "tcp", net.JoinHostPort("localhost", port))
	var r *BlockedError
	if !errors.As(err, &r) {
		t.Fatalf("dial = %v, want a refusal", err)
	}
	if err := g.Control("unix", "/run/docker.sock", nil); err == nil {
		t.Error("Control() accepted a unix socket")
	}
	if err := g.Control("tcp4", "nonsense", nil); err == nil {
		t.Error("Control() accepted an invalid address")
	}
	open, _ := New([]string{"127.0.0.0/8", "::1"})
	d.Control = open.Control
	conn, err := d.DialContext(context.Background(), "tcp", net.JoinHostPort("localhost", port))
	if err != nil {
		t.Fatalf("dial with allow_cidrs: %v", err)
	}
	_ = conn.Close()
}

func FuzzParseCIDR(f *testing.F) {
	for _, s := range []string{"10.0.0.0/8", "::1", "::ffff:1.2.3.4/100", "fe80::1%eth0", "", "1.2.3.4/32", "::/0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParseCIDR(s)
		if err == nil && (!p.IsValid() || p.Masked() != p) {
			t.Errorf("ParseCIDR(%q) = %v", s, p)
		}
	})
}

func ExampleGuard_CheckHost() {
	g, _ := New([]string{"10.1.0.0/16"})
	_ = g.CheckHost("10.1.2.3") // allowed
	_ = g.CheckHost("10.9.2.3") // 10.9.2.3 is a private address, which is rejected by default; to allow it, add it to allow_cidrs
}
