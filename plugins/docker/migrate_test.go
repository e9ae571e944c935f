//go:build linux

package docker

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/hubrelay/hubrelay/relay"
)

func TestMigrate_MovesInstanceAndVolumes(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	want, before := r.listing(r.a), r.inspect(r.a)
	if err := r.migrate(); err != nil {
		t.Fatal(err)
	}
	r.alone(r.b, want)
	after := r.inspect(r.b)
	for _, c := range []*container.InspectResponse{&before, &after} {
		c.Config.Hostname = ""
		c.HostConfig.Mounts[0].VolumeOptions = nil // nocopy
	}
	if diff := cmp.Diff(before.Config, after.Config); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(before.HostConfig, after.HostConfig); diff != "" {
		t.Error(diff)
	}
	var completed []string
	var bytes int64
	for _, p := range r.reports {
		if p.Completed {
			completed = append(completed, p.Step)
		}
		if p.Step == stepCopy {
			bytes = max(bytes, p.Bytes)
		}
	}
	if diff := cmp.Diff([]string{
		"claim", "check", "image", "prepare", "stop", "copy", "verify", "start", "switch",
		"clean",
	}, completed); diff != "" {
		t.Error(diff)
	}
	if bytes < 3_200_000 {
		t.Errorf("got %d reported bytes, want at least 3200000", bytes)
	}

	// Move the instance back. The claims of the first migration do not interfere.
	r.m.Source, r.m.Destination, r.m.Lease, r.m.JobID = r.m.Destination, r.m.Source, 2, "back-"+r.m.JobID
	if err := r.migrate(); err != nil {
		t.Fatal(err)
	}
	r.alone(r.a, want)
}

func TestMigrate_WithoutCopyVolumes(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.m.CopyVolumes = false
	before := r.inspect(r.a)
	if err := r.migrate(); err != nil {
		t.Fatal(err)
	}
	r.running(r.b)
	after := r.inspect(r.b)
	before.Config.Hostname, after.Config.Hostname = "", ""
	if diff := cmp.Diff(before.Config, after.Config); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(before.HostConfig, after.HostConfig); diff != "" {
		t.Error(diff)
	}
	if files, err := os.ReadDir(r.b.volume(r.volume)); err != nil || len(files) != 2 || files[1].Name() != "seed" {
		t.Errorf("got files %v and error %v in the new volume", files, err)
	}
	if left := r.left(r.a); len(left) != 1 || !strings.Contains(r.listing(r.a), "marker") {
		t.Errorf("the source has %q", left)
	}

	// A migration back does not overwrite the kept volume.
	r.m.Source, r.m.Destination, r.m.Lease, r.m.JobID = r.m.Destination, r.m.Source, 2, "back-"+r.m.JobID
	err := r.migrate()
	if err == nil || !strings.Contains(err.Error(), "already has a volume "+r.volume) {
		t.Errorf("got error %v", err)
	}
	r.running(r.b)
}

func TestMigrate_KeepsSourceVolumesIfConfigured(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.d.config.KeepSourceVolumes = true
	want := r.listing(r.a)
	if err := r.migrate(); err != nil {
		t.Fatal(err)
	}
	r.running(r.b)
	if left := r.left(r.a); len(left) != 1 || r.listing(r.a) != want || r.listing(r.b) != want {
		t.Errorf("the source has %q", left)
	}
}

func TestMigrate_AnonymousReadOnlyAndNestedVolumes(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *client.ContainerCreateOptions) {
		o.HostConfig.Binds = []string{
			o.HostConfig.Mounts[0].Source + ":/data", o.Name + "-inner:/data/inner",
			o.Name + "-fixed:/fixed:ro",
		}
		o.HostConfig.Mounts = nil
		o.Config.Volumes = map[string]struct{}{"/anonymous": {}}
	})
	unnamed := ""
	for _, m := range r.inspect(r.a).Mounts {
		if m.Destination == "/anonymous" {
			unnamed = m.Name
		}
	}
	files := []string{r.instance + "-inner", r.instance + "-fixed", unnamed}
	for _, name := range files {
		if err := os.WriteFile(filepath.Join(r.a.volume(name), "file"), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := r.listing(r.a)
	if err := r.migrate(); err != nil {
		t.Fatal(err)
	}
	r.running(r.b)
	if got := r.listing(r.b); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, name := range files {
		if data, err := os.ReadFile(filepath.Join(r.b.volume(name), "file")); err != nil || string(data) != name {
			t.Errorf("got %q and error %v from volume %s", data, err, name)
		}
		if _, err := os.Stat(r.a.volume(name)); err == nil {
			t.Errorf("volume %s is still on the source", name)
		}
	}
	if left := r.left(r.a); len(left) != 0 {
		t.Errorf("the source has %q", left)
	}
}

// Docker reports a host name for a container in the host's namespace, but rejects it in a new configuration.
func TestMigrate_HostNamespaces(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *client.ContainerCreateOptions) {
		o.HostConfig.NetworkMode, o.HostConfig.UTSMode = "host", "host"
	})
	want := r.listing(r.a)
	if err := r.migrate(); err != nil {
		t.Fatal(err)
	}
	r.alone(r.b, want)
	if c := r.inspect(r.b); !c.HostConfig.NetworkMode.IsHost() || !c.HostConfig.UTSMode.IsHost() {
		t.Errorf("got %+v", c.HostConfig)
	}
}

func TestMigrate_LeavesStoppedInstanceStopped(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	if _, err := r.a.api.ContainerStop(t.Context(), r.instance, client.ContainerStopOptions{}); err != nil {
		t.Fatal(err)
	}
	want := r.listing(r.a)
	if err := r.migrate(); err != nil {
		t.Fatal(err)
	}
	if c := r.inspect(r.b); c.State.Status != container.StateCreated ||
		c.HostConfig.RestartPolicy.Name != container.RestartPolicyAlways {
		t.Errorf("got state %s and restart policy %q", c.State.Status, c.HostConfig.RestartPolicy.Name)
	}
	if got := r.listing(r.b); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if left := r.left(r.a); len(left) != 0 {
		t.Errorf("the source has %q", left)
	}
}

func TestMigrate_CopiesImage(t *testing.T) {
	t.Parallel()
	if hostA == nil {
		t.Skipf("%s is not set: make test-docker", dockerVariable)
	}
	const name = "hubrelay/other:1"
	if err := hostA.load(name, `CMD ["/app","serve"]`, "LABEL other=yes"); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, func(o *client.ContainerCreateOptions) { o.Config.Image = name })
	r.m.CopyVolumes, r.m.Stateful = false, false
	for i, wantCopied := range []bool{true, false, false} { // to b, back, and to b again
		r.reports = nil
		if err := r.migrate(); err != nil {
			t.Fatal(err)
		}
		copied := false
		for _, p := range r.reports {
			copied = copied || p.Step == stepImage && p.Bytes > 0
		}
		if copied != wantCopied {
			t.Errorf("migration %d: got image copied %t, want %t", i, copied, wantCopied)
		}
		if _, err := hostB.api.ImageInspect(t.Context(), name); err != nil {
			t.Error(err)
		}
		r.m.Source, r.m.Destination, r.m.Lease, r.m.JobID = r.m.Destination, r.m.Source, r.m.Lease+1, r.m.JobID+"x"
	}
	if got := r.inspect(hostB).Config.Image; got != name {
		t.Errorf("got image %s, want %s", got, name)
	}
}

// The driver connects to the source with a fake ssh program, and to the destination with TLS.
func TestMigrate_OverSSHAndTLS(t *testing.T) {
	r := newRig(t, nil)
	dir := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\necho \"$@\" >> %s/calls\nexec env %s=ssh %s=%s %s\n", dir, roleVariable,
		socketVariable, r.a.socket, os.Args[0])
	if err := os.WriteFile(filepath.Join(dir, "ssh"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	file := func(name string) string { return filepath.Join(filepath.Dir(r.b.dir), name) }
	r.m.Source = server("a", "ssh://ops@host-a")
	r.m.Destination.Settings = fmt.Appendf(nil, `{"host":"tcp://%s","tls":{"ca_file":%q,"cert_file":%q,"key_file":%q}}`,
		r.b.tcp, file("ca.pem"), file("cert.pem"), file("key.pem"))
	if err := r.d.Configure(t.Context(), []relay.Server{r.m.Source, r.m.Destination}); err != nil {
		t.Fatal(err)
	}
	want := r.listing(r.a)
	if err := r.migrate(); err != nil {
		t.Fatal(err)
	}
	r.alone(r.b, want)
	if calls, err := os.ReadFile(filepath.Join(dir, "calls")); err != nil ||
		!strings.Contains(string(calls), "-- host-a docker system dial-stdio") {
		t.Errorf("got ssh calls %q and error %v", calls, err)
	}
}

// The driver needs no more memory for a large volume than for a small one.
func TestMigrate_MemoryDoesNotGrowWithVolume(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	const size = 512 << 20
	if err := os.Truncate(filepath.Join(r.a.volume(r.volume), "large"), size); err != nil {
		t.Fatal(err)
	}
	out := r.inProcess("", true)
	peak := 0
	for lines := bufio.NewScanner(strings.NewReader(out)); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "VmHWM:"); ok {
			peak, _ = strconv.Atoi(strings.Fields(value)[0])
		}
	}
	t.Logf("the driver used %d KiB for a volume of %d KiB", peak, size>>10)
	if peak == 0 || peak > 200<<10 {
		t.Errorf("the driver used %d KiB, want at most %d", peak, 200<<10)
	}
	if info, err := os.Stat(filepath.Join(r.b.volume(r.volume), "large")); err != nil || info.Size() != size {
		t.Errorf("got file %v and error %v, want %d bytes", info, err, size)
	}
}

// The instance keeps its two networks, but not its fixed address, which is outside of the subnet on the destination.
func TestMigrate_KeepsNetworks(t *testing.T) {
	t.Parallel()
	if hostA == nil {
		t.Skipf("%s is not set: make test-docker", dockerVariable)
	}
	createNetworks(t, "net-first", 10)
	createNetworks(t, "net-second", 20)
	r := newRig(t, func(o *client.ContainerCreateOptions) {
		o.HostConfig.NetworkMode = "net-first"
		o.NetworkingConfig = &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{
			"net-first": {Aliases: []string{"database"}, IPAMConfig: &network.EndpointIPAMConfig{
				IPv4Address: netip.MustParseAddr("10.231.10.77"),
			}},
		}}
	})
	if _, err := r.a.api.NetworkConnect(t.Context(), "net-second", client.NetworkConnectOptions{
		Container: r.instance, EndpointConfig: &network.EndpointSettings{Aliases: []string{"db2"}},
	}); err != nil {
		t.Fatal(err)
	}
	want := r.listing(r.a)
	if err := r.migrate(); err != nil {
		t.Fatal(err)
	}
	r.alone(r.b, want)
	c := r.inspect(r.b)
	for name, alias := range map[string]string{"net-first": "database", "net-second": "db2"} {
		e := c.NetworkSettings.Networks[name]
		if e == nil || !slices.Contains(e.Aliases, alias) || len(e.Aliases) > 2 || !e.IPAddress.IsValid() {
			t.Errorf("network %s: got %+v", name, e)
		}
	}
	if c.Config.Hostname != shortID(c.ID) {
		t.Errorf("got host name %s, want %s", c.Config.Hostname, shortID(c.ID))
	}
	r.removeAll() // before the networks
}

// createNetworks creates a network with this name on both hosts, with different subnets.
func createNetworks(t *testing.T, name string, n int) {
	t.Helper()
	for i, d := range []*daemon{hostA, hostB} {
		_, err := d.api.NetworkCreate(context.Background(), name,
			client.NetworkCreateOptions{Driver: "bridge", IPAM: &network.IPAM{
				Config: []network.IPAMConfig{{Subnet: netip.MustParsePrefix(fmt.Sprintf("10.231.%d.0/24", n+i))}},
			}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if _, err := d.api.NetworkRemove(context.Background(), name, client.NetworkRemoveOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
}
