//go:build linux

package docker

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
)

// commitLink creates an image on host a: the image of the tests and a symbolic link.
func commitLink(t *testing.T, name, link, target string) {
	t.Helper()
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	err := errors.Join(
		w.WriteHeader(&tar.Header{Name: filepath.Dir(link) + "/", Typeflag: tar.TypeDir, Mode: 0o755}),
		w.WriteHeader(&tar.Header{Name: link, Linkname: target, Typeflag: tar.TypeSymlink, Mode: 0o777}),
		w.Close(),
	)
	if err != nil {
		t.Fatal(err)
	}
	c, err := hostA.api.ContainerCreate(t.Context(), client.ContainerCreateOptions{Image: imageName})
	if err != nil {
		t.Fatal(err)
	}
	_, err = hostA.api.CopyToContainer(t.Context(), c.ID, client.CopyToContainerOptions{
		DestinationPath: "/", Content: &files,
	})
	if err == nil {
		_, err = hostA.api.ContainerCommit(t.Context(), c.ID, client.ContainerCommitOptions{Reference: name})
	}
	_, removed := hostA.api.ContainerRemove(t.Context(), c.ID, client.ContainerRemoveOptions{RemoveVolumes: true})
	if err := errors.Join(err, removed); err != nil {
		t.Fatal(err)
	}
}

// The files and volumes of an image do not change what the driver copies.
func TestMigrate_CopiesVolumesRegardlessOfImage(t *testing.T) {
	t.Parallel()
	if hostA == nil {
		t.Skipf("%s is not set: make test-docker", dockerVariable)
	}
	for name, image := range map[string]struct{ link, target, volume string }{
		"link to directory": {link: "hubrelay/0", target: "/tmp"},
		"link to mount":     {link: "hubrelay/0", target: "/data"},
		"link to volume":    {link: "hubrelay/0", target: "1"},
		"link of parent":    {link: "hubrelay", target: "/data"},
		// The name of the anonymous volume sorts before the other names.
		"volume": {volume: "/hubrelay/1/deep"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ref := "hubrelay/" + strings.ReplaceAll(name, " ", "-") + ":1"
			if image.link != "" {
				commitLink(t, ref, image.link, image.target)
			} else if err := hostA.load(ref, `CMD ["/app","serve"]`, "VOLUME "+image.volume); err != nil {
				t.Fatal(err)
			}
			r := newRig(t, func(o *client.ContainerCreateOptions) {
				o.Config.Image = ref
				o.HostConfig.Mounts = append(o.HostConfig.Mounts, mount.Mount{
					Type: mount.TypeVolume, Source: o.Name + "-more", Target: "/more",
				})
			})
			more := r.instance + "-more"
			if err := os.WriteFile(filepath.Join(r.a.volume(more), "file"), []byte(name), 0o600); err != nil {
				t.Fatal(err)
			}
			want := r.listing(r.a)
			if err := r.migrate(); err != nil {
				t.Fatal(err)
			}
			r.running(r.b)
			if got := r.listing(r.b); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			data, err := os.ReadFile(filepath.Join(r.b.volume(more), "file"))
			if err != nil || string(data) != name {
				t.Errorf("got %q and error %v from volume %s, want %q", data, err, more, name)
			}
			if left := r.left(r.a); len(left) != 0 {
				t.Errorf("the source has %q, want nothing", left)
			}
		})
	}
}

// The driver replaces a carrier with another image or other mounts.
func TestMigrate_ReplacesUnusableCarrier(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	want := r.listing(r.a)
	r.d.stepHook = func(p string) {
		if p == stepCopy {
			for _, d := range []*daemon{r.a, r.b} {
				r.other(d, func(o *client.ContainerCreateOptions) { o.Name = r.instance + ".carrier-1" })
			}
		}
	}
	if err := r.migrate(); err != nil {
		t.Fatal(err)
	}
	r.alone(r.b, want)
}

// All carriers on a host use the same empty image. The driver loads it again if it has been removed. Parallel tests would lose the
// image while they create carriers.
func TestCreateCarrier_UsesEmptyImage(t *testing.T) {
	r := newRig(t, nil)
	h, err := openHost(r.m.Source, r.instance, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.client.Close() })
	var ids []string
	for range 2 {
		if err := h.createCarrier(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		c, err := h.inspectContainer(t.Context(), h.workName(kindCarrier))
		if err != nil {
			t.Fatal(err)
		}
		image, err := h.client.ImageInspect(t.Context(), c.Image)
		if err != nil {
			t.Fatal(err)
		}
		if image.Size != 0 || len(image.Config.Volumes) != 0 || len(image.RepoTags) != 0 {
			t.Errorf("got image %+v, want an empty one without a name", image)
		}
		if err := h.remove(t.Context(), c.Name, true); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, c.Image)
		if _, err := h.client.ImageRemove(t.Context(), c.Image, client.ImageRemoveOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if ids[0] != ids[1] {
		t.Errorf("got images %q, want the same image", ids)
	}
}

func TestCheckMounts(t *testing.T) {
	t.Parallel()
	want := []mount.Mount{
		{Type: mount.TypeVolume, Source: "a", Target: mountPath(0), ReadOnly: true},
		{Type: mount.TypeVolume, Source: "b", Target: mountPath(1), ReadOnly: true},
	}
	a := container.MountPoint{Type: mount.TypeVolume, Name: "a", Destination: "/hubrelay/0"}
	b := container.MountPoint{Type: mount.TypeVolume, Name: "b", Destination: "/hubrelay/1"}
	writable, elsewhere := b, b
	writable.RW, elsewhere.Destination = true, "/hubrelay/2"
	for name, c := range map[string]struct {
		got []container.MountPoint
		ok  bool
	}{
		"exact":            {[]container.MountPoint{b, a}, true},
		"missing volume":   {[]container.MountPoint{a}, false},
		"writable volume":  {[]container.MountPoint{a, writable}, false},
		"other path":       {[]container.MountPoint{a, elsewhere}, false},
		"additional mount": {[]container.MountPoint{a, b, {Type: mount.TypeVolume, Name: "c", Destination: "/x"}}, false},
	} {
		if err := checkMounts(c.got, want); (err == nil) != c.ok {
			t.Errorf("%s: got error %v, want success %t", name, err, c.ok)
		}
	}
}
