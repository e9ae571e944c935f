package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
)

// carrierRoot is the directory in a carrier that contains the volumes. The driver extracts archives into this directory
// and not into the directory of the volume, because Docker does not change the owner and mode of the target directory.
const carrierRoot = "/hubrelay"

func mountPath(i int) string { return carrierRoot + "/" + strconv.Itoa(i) }

// createCarriers creates a carrier on each host. A carrier mounts only the volumes, and at other paths than the
// instance, because the paths of the instance may be read-only or nested. It replaces the carriers of earlier calls,
// because another version of the driver may have created them.
func (mg *migration) createCarriers(ctx context.Context, volumes []string) error {
	for _, h := range []*dockerHost{mg.source, mg.destination} {
		var mounts []mount.Mount
		for i, name := range volumes {
			mounts = append(mounts, mount.Mount{
				Type: mount.TypeVolume, Source: name, Target: mountPath(i), ReadOnly: h == mg.source,
				VolumeOptions: &mount.VolumeOptions{NoCopy: true},
			})
		}
		if err := h.remove(ctx, h.workName(kindCarrier), true); err != nil {
			return mg.withServer(h, err)
		}
		if err := mg.checkLeases(ctx); err != nil {
			return err
		}
		if err := h.createCarrier(ctx, mounts); err != nil {
			return mg.withServer(h, err)
		}
		if err := mg.checkLeases(ctx); err != nil {
			return errors.Join(err, h.remove(ctx, h.workName(kindCarrier), true))
		}
		c, err := h.inspectContainer(ctx, h.workName(kindCarrier))
		if err == nil {
			err = checkMounts(c.Mounts, mounts)
		}
		if err != nil {
			return mg.withServer(h, err)
		}
	}
	return nil
}

// checkMounts checks that the mounts of a carrier are exactly the volumes. The driver would copy other data otherwise.
func checkMounts(got []container.MountPoint, want []mount.Mount) error {
	for _, w := range want {
		if !slices.ContainsFunc(got, func(m container.MountPoint) bool {
			return m.Type == w.Type && m.Name == w.Source && m.Destination == w.Target && m.RW != w.ReadOnly
		}) {
			return fmt.Errorf("the container for copying does not mount volume %s as required", w.Source)
		}
	}
	if len(got) != len(want) {
		return fmt.Errorf("the container for copying has %d mounts, want %d", len(got), len(want))
	}
	return nil
}

// createCarrier creates a container that is never started. Its image is empty, because files, symbolic links or volumes
// of another image would change what the paths of the mounts contain.
func (h *dockerHost) createCarrier(ctx context.Context, mounts []mount.Mount) (err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for range 2 { // docker image prune may remove the image before the container exists
		var image string
		if image, err = h.loadCarrierImage(ctx); err != nil {
			return fmt.Errorf("load the image of the carriers: %w", err)
		}
		_, err = h.client.ContainerCreate(ctx, client.ContainerCreateOptions{
			Name: h.workName(kindCarrier),
			Config: &container.Config{
				Image: image, Entrypoint: []string{"/hubrelay"}, // Docker requires a command
				Labels: map[string]string{labelLease: strconv.FormatInt(h.lease, 10)},
			},
			HostConfig: &container.HostConfig{NetworkMode: container.NetworkMode("none"), Mounts: mounts},
		})
		if !errdefs.IsNotFound(err) {
			return err
		}
	}
	return err
}

// loadCarrierImage loads the image of the carriers and returns its ID. The ID depends only on the contents of the image.
// The image has no name, because an operator or another image can use any name.
func (h *dockerHost) loadCarrierImage(ctx context.Context) (string, error) {
	version, err := h.client.ServerVersion(ctx, client.ServerVersionOptions{})
	if err != nil {
		return "", err
	}
	archive, id, err := carrierImage(version.Os, version.Arch)
	if err != nil {
		return "", err
	}
	loaded, err := h.client.ImageLoad(ctx, bytes.NewReader(archive))
	if err != nil {
		return "", err
	}
	id, err = readLoaded(loaded, id)
	return id, errors.Join(err, loaded.Close())
}

// carrierImage returns an archive for docker load with an empty image, and the ID of the image. Docker may reject an
// image for another platform than its own.
func carrierImage(goos, arch string) (archive []byte, id string, err error) {
	const created = "1970-01-01T00:00:00Z"
	layer := make([]byte, 1024) // a tar archive without entries
	config, err := json.Marshal(map[string]any{
		"os": goos, "architecture": arch, "created": created,
		"config":  map[string]any{"Labels": map[string]string{labelCarrier: ""}},
		"history": []any{map[string]string{"created": created, "comment": "empty image for copying volumes"}},
		"rootfs": map[string]any{
			"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))},
		},
	})
	if err != nil {
		return nil, "", err
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(config))
	manifest, err := json.Marshal([]any{map[string]any{"Config": sum + ".json", "Layers": []string{"layer.tar"}}})
	if err != nil {
		return nil, "", err
	}
	var data bytes.Buffer
	w := tar.NewWriter(&data)
	for _, f := range []struct {
		name string
		data []byte
	}{{sum + ".json", config}, {"layer.tar", layer}, {"manifest.json", manifest}} {
		h := tar.Header{Name: f.name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(f.data))}
		if err := w.WriteHeader(&h); err != nil {
			return nil, "", err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, "", err
		}
	}
	err = w.Close()
	return data.Bytes(), "sha256:" + sum, err
}
