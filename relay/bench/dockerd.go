package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

const (
	dockerImage = "bench:1"
	sink        = "sink" // name of a container that receives archives
)

// dockerd is a Docker host that the bench starts. Its containers are created but never started.
type dockerd struct {
	dir     string
	socket  string
	process *exec.Cmd
	client  *http.Client
}

// startDockerd needs a short path for dir, because the length of socket paths is limited.
func startDockerd(ctx context.Context, dir string) (*dockerd, error) {
	d := &dockerd{dir: dir, socket: filepath.Join(dir, "s")}
	d.client = socketClient(d.socket)
	d.process = exec.CommandContext(ctx, "dockerd", "-H", "unix://"+d.socket, "--pidfile", filepath.Join(dir, "pid"),
		"--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--iptables=false", "--ip6tables=false", "--bridge=none", "--storage-driver=vfs")
	d.process.Cancel = func() error { return d.process.Process.Signal(syscall.SIGTERM) } // ends its containerd too
	d.process.WaitDelay = 20 * time.Second
	var log bytes.Buffer
	d.process.Stdout, d.process.Stderr = &log, &log
	if err := errors.Join(os.Mkdir(dir, 0o700), d.process.Start()); err != nil {
		return nil, err
	}
	err := d.waitReady(ctx)
	if err == nil {
		err = d.createContainer(ctx, sink)
	}
	if err != nil {
		d.stop()
		return nil, fmt.Errorf("dockerd: %w: %s", err, log.Bytes()[max(0, log.Len()-2000):])
	}
	return d, nil
}

// waitReady waits for dockerd and imports an image.
func (d *dockerd) waitReady(ctx context.Context) error {
	var image bytes.Buffer
	w := tar.NewWriter(&image)
	header := &tar.Header{Name: "none", Typeflag: tar.TypeReg, Mode: 0o755}
	if err := errors.Join(w.WriteHeader(header), w.Close()); err != nil {
		return err
	}
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		err := d.run(ctx, nil, "version")
		if err == nil {
			return d.run(ctx, &image, "import", "-", dockerImage)
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return err
		}
	}
}

// run runs the command line of Docker.
func (d *dockerd) run(ctx context.Context, in io.Reader, args ...string) error {
	cmd := exec.CommandContext(ctx, "docker", append([]string{"-H", "unix://" + d.socket}, args...)...)
	cmd.Stdin = in
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("docker %s: %w: %s", args[0], err, out)
	}
	return nil
}

// createContainer creates a container with a volume of the same name.
func (d *dockerd) createContainer(ctx context.Context, name string) error {
	return d.run(ctx, nil, "create", "--name", name, "--network", "none", "-v", name+":/volume", dockerImage, "/none")
}

// volumePath returns the directory of a volume.
func (d *dockerd) volumePath(name string) string {
	return filepath.Join(d.dir, "data", "volumes", name, "_data")
}

// copyArchive streams the archive of a container's volume to the other host, which unpacks it.
func (d *dockerd) copyArchive(ctx context.Context, name string, to *dockerd) error {
	out, err := d.requestArchive(ctx, http.MethodGet, name, "/volume", nil)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	in, err := to.requestArchive(ctx, http.MethodPut, sink, "/", out)
	if err != nil {
		return err
	}
	return in.Close()
}

func (d *dockerd) requestArchive(
	ctx context.Context, method, name, path string, body io.Reader,
) (io.ReadCloser, error) {
	url := "http://docker/v1.41/containers/" + name + "/archive?path=" + path
	q, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return nil, err
	}
	response, err := d.client.Do(q)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1000))
		return nil, errors.Join(fmt.Errorf("%s %s: %s: %s", method, path, response.Status, text), response.Body.Close())
	}
	return response.Body, nil
}

// stop terminates dockerd and waits for its end.
func (d *dockerd) stop() {
	d.client.CloseIdleConnections()
	_ = d.process.Process.Signal(syscall.SIGTERM)
	_ = d.process.Wait() // it reports the signal
}
