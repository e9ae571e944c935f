//go:build linux

package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

// rig consists of two hosts, an instance with a volume on host a, and the request to move it to host b.
type rig struct {
	t        testing.TB
	a, b     *daemon
	instance string
	volume   string
	m        relay.Migration
	d        *Driver

	mu      sync.Mutex
	reports []relay.Progress
}

var unwanted = regexp.MustCompile(`[^a-zA-Z0-9]+`)

// newRig returns a rig with a running instance. change may change the options of its container.
func newRig(t testing.TB, change func(*client.ContainerCreateOptions)) *rig {
	t.Helper()
	if hostA == nil {
		t.Skipf("%s is not set: make test-docker", dockerVariable)
	}
	return newRigOn(t, hostA, hostB, change)
}

func newRigOn(t testing.TB, a, b *daemon, change func(*client.ContainerCreateOptions)) *rig {
	t.Helper()
	// No name contains another one, because Docker filters by substring.
	r := &rig{t: t, a: a, b: b, instance: strings.ToLower(unwanted.ReplaceAllString(t.Name(), "-")) + "-x"}
	r.volume = r.instance + "-data"
	r.m = relay.Migration{
		JobID: "job-" + r.instance, Lease: 1, Container: "c", Instance: r.instance, Hub: "h", Stateful: true,
		CopyVolumes: true,
		Source:      server("a", "unix://"+a.socket), Destination: server("b", "unix://"+b.socket),
	}
	config := testConfig()
	r.d = New(&config)
	t.Cleanup(r.removeAll)
	r.run(change)
	return r
}

func testConfig() Config {
	c := DefaultConfig()
	c.Settle = Duration(300 * time.Millisecond)
	return c
}

func (r *rig) run(change func(*client.ContainerCreateOptions)) {
	r.t.Helper()
	o := client.ContainerCreateOptions{
		Name: r.instance,
		Config: &container.Config{
			Image: imageName, Env: []string{"COLOR=green"}, Labels: map[string]string{"team": "blue"},
		},
		HostConfig: &container.HostConfig{
			NetworkMode: "none", RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyAlways},
			Mounts: []mount.Mount{{Type: mount.TypeVolume, Source: r.volume, Target: "/data"}},
		},
	}
	if change != nil {
		change(&o)
	}
	ctx := r.t.Context()
	if _, err := r.a.api.ContainerCreate(ctx, o); err != nil {
		r.t.Fatal(err)
	}
	r.fill(r.a)
	if _, err := r.a.api.ContainerStart(ctx, r.instance, client.ContainerStartOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

func (d *daemon) volume(name string) string {
	return filepath.Join(d.dir, "data/volumes", name, "_data")
}

// fill writes files of all types to the volume.
func (r *rig) fill(d *daemon) {
	r.t.Helper()
	root := d.volume(r.volume)
	at := func(name string) string { return filepath.Join(root, name) }
	err := errors.Join(
		os.Remove(at("seed")), // Docker must not copy it from the image again
		os.Chmod(root, 0o751),
		os.WriteFile(at("marker"), []byte("yes"), 0o640),
		os.WriteFile(at("large"), bytes.Repeat([]byte("0123456789abcdef"), 200_000), 0o600),
		os.MkdirAll(at("deep/empty"), 0o700),
		os.WriteFile(at("deep/tool"), []byte("#!"), 0o755),
		os.Chown(at("deep/tool"), 1234, 4321),
		os.Chmod(at("deep/tool"), fs.ModeSetuid|0o755),
		os.Symlink("../large", at("deep/link")),
		os.Symlink("/no/such/file", at("nowhere")),
		os.Link(at("large"), at("hard")),
		syscall.Mkfifo(at("fifo"), 0o600),
		os.WriteFile(at("spaces and ü\nnewline"), nil, 0o600),
		os.Chtimes(at("marker"), time.Unix(1_000_000_000, 0), time.Unix(1_000_000_000, 0)),
	)
	if err != nil {
		r.t.Fatal(err)
	}
}

// listing returns the content of a volume, without the file that the app writes.
func (r *rig) listing(d *daemon) string {
	r.t.Helper()
	var lines []string
	root := d.volume(r.volume)
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil || e.Name() == "now" {
			return err
		}
		s, _ := info.Sys().(*syscall.Stat_t)
		name, _ := filepath.Rel(root, path)
		line := fmt.Sprintf("%q %s %d:%d", name, info.Mode(), s.Uid, s.Gid)
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %d %d %x", s.Nlink, info.ModTime().Unix(),
				data[:min(len(data), 40)]) + fmt.Sprint(len(data))
		case info.Mode()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(path)
			line += " " + target
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		r.t.Error(err)
	}
	return strings.Join(lines, "\n")
}

func (r *rig) report(p relay.Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reports = append(r.reports, p)
}

func (r *rig) migrate() error { return r.d.Migrate(r.t.Context(), r.m, r.report) }

// killAt runs the migration in a process that kills itself at the given point.
func (r *rig) killAt(point string) {
	r.t.Helper()
	r.inProcess(point, false)
	r.m.Lease++
}

// inProcess runs the migration in another process. The process must complete if complete is set, and kill itself at the
// point otherwise.
func (r *rig) inProcess(point string, complete bool) string {
	r.t.Helper()
	cmd := r.process(point, false)
	out, err := cmd.CombinedOutput()
	if killed := isKilled(err); complete != (err == nil) || killed == complete {
		r.t.Fatalf("at %s: %v %s", point, err, out)
	}
	return string(out)
}

// process returns the command of a driver that kills itself at the given point, or suspends itself if freeze is set.
func (r *rig) process(point string, freeze bool) *exec.Cmd {
	r.t.Helper()
	data, err := json.Marshal(driverTask{Migration: r.m, At: point, Freeze: freeze, Config: testConfig()})
	if err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"=driver")
	cmd.Stdin = bytes.NewReader(data)
	return cmd
}

func isKilled(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signal() == syscall.SIGKILL
}

func (r *rig) inspect(d *daemon) container.InspectResponse {
	r.t.Helper()
	c, err := d.api.ContainerInspect(context.Background(), r.instance, client.ContainerInspectOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return c.Container
}

// running checks that the instance runs on a host with its restart policy, and writes to its volume.
func (r *rig) running(d *daemon) {
	r.t.Helper()
	if c := r.inspect(d); !c.State.Running || c.HostConfig.RestartPolicy.Name != container.RestartPolicyAlways {
		r.t.Errorf("got state %s and restart policy %q, want a running instance", c.State.Status,
			c.HostConfig.RestartPolicy.Name)
	}
	before, _ := os.ReadFile(filepath.Join(d.volume(r.volume), "now"))
	testkit.WaitFor(r.t, "the app to write", func() bool {
		now, _ := os.ReadFile(filepath.Join(d.volume(r.volume), "now"))
		return len(now) > 0 && string(now) != string(before)
	})
}

// left returns the containers of the instance on a host, with name and state, and its volumes except claims.
func (r *rig) left(d *daemon) []string {
	r.t.Helper()
	ctx := context.Background()
	containers, err := d.api.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: client.Filters{}.Add("name", r.instance),
	})
	if err != nil {
		r.t.Error(err)
	}
	volumes, err := d.api.VolumeList(ctx, client.VolumeListOptions{Filters: client.Filters{}.Add("name", r.instance)})
	if err != nil {
		r.t.Error(err)
	}
	list := []string{}
	for _, c := range containers.Items {
		name := strings.TrimPrefix(c.Names[0], "/")
		list = append(list, fmt.Sprint("container ", name, " ", c.ID, " ", c.State))
	}
	for _, v := range volumes.Items {
		if v.Labels[labelClaim] == "" {
			list = append(list, "volume "+v.Name+" "+v.CreatedAt)
		}
	}
	slices.Sort(list)
	return list
}

// alone checks that the instance runs on one host, and that nothing else of it is left on either host.
func (r *rig) alone(at *daemon, want string) {
	r.t.Helper()
	other := r.a
	if at == r.a {
		other = r.b
	}
	r.running(at)
	if got := r.listing(at); got != want {
		r.t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if l := r.left(other); len(l) != 0 {
		r.t.Errorf("got %q on the other host, want nothing", l)
	}
	if l := r.left(at); len(l) != 2 {
		r.t.Errorf("got %q on the host, want a container and a volume", l)
	}
}

// settled checks the result of a migration: the instance runs on the destination if forward is set, and on the source
// otherwise.
func (r *rig) settled(err error, forward bool, want string) {
	r.t.Helper()
	at := r.a
	if forward {
		at = r.b
	}
	if (err == nil) != forward || relay.IsIndeterminate(err) || errors.Is(err, relay.ErrSuperseded) {
		r.t.Errorf("got error %v", err)
	}
	r.alone(at, want)
}

// failed checks that the instance runs on the source again, and that the error contains the texts.
func (r *rig) failed(err error, want string, texts ...string) {
	r.t.Helper()
	if err == nil {
		r.t.Fatal("got no error")
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			r.t.Errorf("got error %q, want it to contain %q", err, text)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		r.t.Errorf("error %q has more than one line", err)
	}
	r.settled(err, false, want)
}

func (r *rig) removeAll() {
	ctx := context.Background()
	for _, d := range []*daemon{r.a, r.b} {
		containers, err := d.api.ContainerList(ctx, client.ContainerListOptions{
			All: true, Filters: client.Filters{}.Add("name", r.instance),
		})
		if err != nil {
			r.t.Error(err)
			continue
		}
		for _, c := range containers.Items {
			if _, err := d.api.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{
				Force: true, RemoveVolumes: true,
			}); err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
				r.t.Error(err)
			}
		}
		volumes, err := d.api.VolumeList(ctx, client.VolumeListOptions{
			Filters: client.Filters{}.Add("name", r.instance),
		})
		if err != nil {
			r.t.Error(err)
			continue
		}
		for _, v := range volumes.Items {
			if _, err := d.api.VolumeRemove(ctx, v.Name, client.VolumeRemoveOptions{}); err != nil &&
				!errdefs.IsNotFound(err) {
				r.t.Error(err)
			}
		}
	}
}
