package docker

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"

	"github.com/hubrelay/hubrelay/relay"
)

func TestDockerHost_ClassifyNames(t *testing.T) {
	t.Parallel()
	h := &dockerHost{instance: "web.1", lease: 12}
	for _, want := range []restoreInfo{
		{job: jobTag("job"), arrivalID: "0123456789ab", wasRunning: true, policy: container.RestartPolicy{
			Name: container.RestartPolicyAlways,
		}},
		{job: jobTag("other"), arrivalID: "0123456789ab", policy: container.RestartPolicy{
			Name: container.RestartPolicyOnFailure, MaximumRetryCount: 7,
		}},
		{job: jobTag("other"), arrivalID: "0123456789ab", policy: container.RestartPolicy{
			Name: container.RestartPolicyDisabled,
		}},
	} {
		b, ok := h.classify("id", h.workName(kindLeft)+"."+want.String())
		if !ok || b.kind != kindLeft || b.lease != 12 || b.restore != want || b.suffix != "."+want.String() {
			t.Errorf("%+v was parsed as %+v", want, b)
		}
	}
	for name, kind := range map[string]string{
		"web.1": "", "web.1.arriving-3": kindArriving,
		h.arrivingName("job"): kindArriving, "web.1.carrier-99": kindCarrier,
	} {
		if b, ok := h.classify("id", name); !ok || b.kind != kind {
			t.Errorf("%s was parsed as %+v, %t", name, b, ok)
		}
	}
	for _, name := range []string{
		"web", "web.10", "web.1.", "web.1.other", "web.1.arriving-", "web.1.arriving-x", "web.1.arriving-3.4",
		"web.1.leaving-3",
		"web.1.leaving-3.0.0.up.no", "web.1.leaving-3.01234567", "web.1.carrier-3.01234567", "xweb.1",
		"web.1.carrier-12345678901234567890", "web-1.arriving-3",
	} {
		if b, ok := h.classify("id", name); ok {
			t.Errorf("%s was parsed as %+v", name, b)
		}
	}
	for _, id := range []string{"", "x", "a b", "a/b", "../x", "-a", ".a", "web.arriving-1", "web.leaving-1.x", "ü1"} {
		if checkInstance(id) == nil {
			t.Errorf("checkInstance accepted %q", id)
		}
	}
	for _, id := range []string{"web", "web.1", "Web_1-x", "leaving-1"} {
		if err := checkInstance(id); err != nil {
			t.Error(err)
		}
	}
}

func TestSingleLine(t *testing.T) {
	t.Parallel()
	err := singleLine(relay.Indeterminate(fmt.Errorf("first\n  second: %w", io.ErrUnexpectedEOF)))
	if err.Error() != "first second: unexpected EOF" || !relay.IsIndeterminate(err) ||
		!errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got error %q", err)
	}
}

// archiveOf returns a tar archive of one file with these contents.
func archiveOf(t *testing.T, h tar.Header, contents string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	h.Size = int64(len(contents))
	if err := errors.Join(w.WriteHeader(&h), second(w.Write([]byte(contents))), w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func second(_ int, err error) error { return err }

func computeDigest(r io.Reader) (string, error) {
	s := newDigestReader(r)
	_, err := io.Copy(io.Discard, s)
	digest, read := s.finish(err)
	return digest, errors.Join(err, read)
}

func TestDigestOf_ComparesEntries(t *testing.T) {
	t.Parallel()
	plain := tar.Header{Name: "0/file", Mode: 0o644, Uid: 1, Gid: 2}
	seen := map[string]string{}
	for name, archive := range map[string][]byte{
		"plain":    archiveOf(t, plain, "contents"),
		"contents": archiveOf(t, plain, "CONTENTS"),
		"name":     archiveOf(t, tar.Header{Name: "0/elif", Mode: 0o644, Uid: 1, Gid: 2}, "contents"),
		"mode":     archiveOf(t, tar.Header{Name: "0/file", Mode: 0o600, Uid: 1, Gid: 2}, "contents"),
		"owner":    archiveOf(t, tar.Header{Name: "0/file", Mode: 0o644, Uid: 9, Gid: 2}, "contents"),
		"attributes": archiveOf(t, tar.Header{
			Name: "0/file", Mode: 0o644, Uid: 1, Gid: 2,
			PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "x"},
		}, "contents"),
	} {
		digest, err := computeDigest(iotest.OneByteReader(bytes.NewReader(archive)))
		if err != nil {
			t.Error(name, err)
		}
		if again, err := computeDigest(bytes.NewReader(archive)); again != digest || err != nil {
			t.Errorf("%s: got digests %s and %s, error %v", name, digest, again, err)
		}
		if other, ok := seen[digest]; ok {
			t.Errorf("%s and %s have the same digest", name, other)
		}
		seen[digest] = name
	}
}

// If Docker cannot read the files, it ends its response early without an error.
func TestDigestOf_RejectsTruncatedStream(t *testing.T) {
	t.Parallel()
	archive := archiveOf(t, tar.Header{Name: "0/file", Mode: 0o644}, "contents")
	for _, n := range []int{0, 100, 512, 515, 1024, 1536} {
		if digest, err := computeDigest(bytes.NewReader(archive[:n])); err == nil {
			t.Errorf("got digest %s for the first %d bytes, want an error", digest, n)
		}
	}
	if _, err := computeDigest(iotest.ErrReader(io.ErrUnexpectedEOF)); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got error %v", err)
	}
}

func TestPortOwner(t *testing.T) {
	t.Parallel()
	list := []container.Summary{{Names: []string{"/web"}, Ports: []container.PortSummary{
		{PrivatePort: 80, PublicPort: 8080, Type: "tcp", IP: netip.MustParseAddr("0.0.0.0")},
		{PrivatePort: 81, PublicPort: 8081, Type: "tcp", IP: netip.MustParseAddr("127.0.0.1")},
		{PrivatePort: 82, Type: "tcp"},
	}}}
	for _, c := range []struct {
		port, address, host string
		taken               bool
	}{
		{"80/tcp", "", "8080", true},
		{"1/tcp", "10.0.0.1", "8080", true},
		{"80/udp", "", "8080", false},
		{"80/tcp", "", "8081", true},
		{"80/tcp", "127.0.0.1", "8081", true},
		{"80/tcp", "127.0.0.2", "8081", false},
		{"80/tcp", "", "", false},
		{"82/tcp", "", "0", false},
		{"80/tcp", "", "8082", false},
	} {
		b := network.PortBinding{HostPort: c.host}
		if c.address != "" {
			b.HostIP = netip.MustParseAddr(c.address)
		}
		if got := portOwner(list, network.MustParsePort(c.port), b); (got == "web") != c.taken {
			t.Errorf("%+v: got %q", c, got)
		}
	}
}

func TestAddressProblem(t *testing.T) {
	t.Parallel()
	n := network.Inspect{
		Network: network.Network{
			IPAM: network.IPAM{Config: []network.IPAMConfig{{Subnet: netip.MustParsePrefix("10.0.0.0/24")}}},
		},
	}
	n.Containers = map[string]network.EndpointResource{
		"x": {Name: "web", IPv4Address: netip.MustParsePrefix("10.0.0.7/24")},
	}
	for address, want := range map[string]string{
		"10.0.0.5": "", "10.0.0.7": "container web uses it",
		"10.0.1.5": "subnets",
	} {
		if got := addressProblem(netip.MustParseAddr(address), n); (got == "") != (want == "") ||
			!strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q", address, got, want)
		}
	}
}

func TestReadLoaded(t *testing.T) {
	t.Parallel()
	for output, want := range map[string]string{
		"": "sha256:1",
		`{"stream":"Loading layer"}{"stream":"Loaded image ID: sha256:2\n"}`: "sha256:2",
		`{"stream":"Loaded image: shop:1\n"}`:                                "shop:1",
	} {
		if got, err := readLoaded(strings.NewReader(output), "sha256:1"); err != nil || got != want {
			t.Errorf("%s: got %q and error %v, want %q", output, got, err, want)
		}
	}
	for _, output := range []string{`{"error":"no space left on device"}`, `{"stream":`} {
		if _, err := readLoaded(strings.NewReader(output), "sha256:1"); err == nil {
			t.Errorf("%s: got no error", output)
		}
	}
}

func TestDescribeError(t *testing.T) {
	t.Parallel()
	v := &migration{source: &dockerHost{server: "a"}, destination: &dockerHost{server: "b"}}
	for text, prefix := range map[string]string{
		"server b: write /x: no space left on device": "server b has not enough disk space",
		"server a: write /x: no space left on device": "server a: write",
		"other": "other",
	} {
		if got := v.describeError(errors.New(text)).Error(); !strings.HasPrefix(got, prefix) {
			t.Errorf("%s: got %q, want prefix %q", text, got, prefix)
		}
	}
}
