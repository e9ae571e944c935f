//go:build linux

package docker

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

// dockerVariable enables the tests that need Docker. `make test-docker` sets it. The tests start two dockerd.
const dockerVariable = "HUBRELAY_TEST_DOCKER"

// roleVariable selects the role of the test binary, which also runs as a driver that can be killed, and as the remote
// command of ssh.
const roleVariable, socketVariable = "HUBRELAY_TEST_ROLE", "HUBRELAY_TEST_SOCKET"

// hostA and hostB are the Docker hosts of all tests. They are nil if dockerVariable is not set.
var hostA, hostB *daemon

// archive is the tar archive from which the tests import images.
var archive string

func TestMain(m *testing.M) {
	var code int
	var err error
	switch os.Getenv(roleVariable) {
	case "driver":
		err = runDriver()
	case "ssh":
		err = dialStdio()
	default:
		code, err = runTests(m)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	if os.Getenv(dockerVariable) != "" {
		code, err = withHosts(m.Run)
	} else {
		code = m.Run()
	}
	if code != 0 || err != nil {
		return code, err
	}
	return 0, goleak.Find()
}

// withHosts starts the two hosts, calls run, and stops them.
func withHosts(run func() int) (code int, err error) {
	runtime.LockOSThread() // see daemon.start
	dir, err := os.MkdirTemp("", "hubrelay-docker")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := writeCertificates(dir); err != nil {
		return 0, err
	}
	if archive, err = buildImage(dir); err != nil {
		return 0, err
	}
	for name, at := range map[string]**daemon{"a": &hostA, "b": &hostB} {
		d, err := startDaemon(dir, name)
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, d.clear(), d.stop(syscall.SIGTERM)) }()
		*at = d
	}
	if err := hostA.load(imageName, "CMD [\"/app\",\"serve\"]"); err != nil {
		return 0, err
	}
	return run(), nil
}

// daemon is a dockerd process of the tests.
type daemon struct {
	dir     string
	socket  string
	tcp     string
	process *exec.Cmd
	api     *client.Client
}

func startDaemon(dir, name string) (*daemon, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("%s is set, but dockerd needs root; run `sudo make test-docker`", dockerVariable)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d := &daemon{dir: filepath.Join(dir, name), tcp: l.Addr().String()}
	d.socket = filepath.Join(d.dir, "docker.sock")
	if err := errors.Join(l.Close(), os.MkdirAll(d.dir, 0o700)); err != nil {
		return nil, err
	}
	if d.api, err = client.New(client.WithHost("unix://" + d.socket)); err != nil {
		return nil, err
	}
	return d, d.start()
}

// start starts dockerd. The kernel stops dockerd when the calling thread ends, so it also ends with a killed test.
// Therefore the caller must lock its thread.
func (d *daemon) start() error {
	file := func(name string) string { return filepath.Join(filepath.Dir(d.dir), name) }
	d.process = exec.Command("dockerd", "--data-root", filepath.Join(d.dir, "data"), "--exec-root",
		filepath.Join(d.dir, "exec"),
		"--pidfile", filepath.Join(d.dir, "pid"), "-H", "unix://"+d.socket, "-H", "tcp://"+d.tcp,
		"--tlsverify", "--tlscacert", file("ca.pem"), "--tlscert", file("cert.pem"), "--tlskey", file("key.pem"),
		"--iptables=false", "--ip6tables=false", "--bridge=none", "--storage-driver=vfs")
	d.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	d.process.Stdout, d.process.Stderr = log, log
	if err := errors.Join(d.process.Start(), log.Close()); err != nil {
		return fmt.Errorf("start dockerd: %w; install Debian's package docker.io", err)
	}
	err = testkit.Poll(func() error {
		_, err := d.api.Ping(context.Background(), client.PingOptions{})
		return err
	})
	if err != nil {
		text, _ := os.ReadFile(filepath.Join(d.dir, "log"))
		return errors.Join(fmt.Errorf("wait for dockerd: %w: %s", err, text[max(0, len(text)-2000):]),
			d.stop(syscall.SIGKILL))
	}
	return nil
}

// stop ends dockerd, its child processes, and the mounts below its directory.
func (d *daemon) stop(signal syscall.Signal) error {
	if signal == syscall.SIGTERM {
		_ = d.api.Close()
	}
	_ = d.process.Process.Signal(signal)
	_ = d.process.Wait() // reports the signal
	for _, pid := range processesOf(d.dir) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	// The next dockerd would wait for this process, which stays a zombie if no process reaps orphans.
	if err := os.Remove(filepath.Join(d.dir, "exec/containerd/containerd.pid")); err != nil &&
		!errors.Is(err, os.ErrNotExist) {
		return err
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	lines := strings.Split(string(mounts), "\n")
	for i := len(lines) - 1; i >= 0; i-- { // unmount in reverse order
		if fields := strings.Fields(lines[i]); len(fields) > 1 && strings.HasPrefix(fields[1], d.dir) {
			_ = syscall.Unmount(fields[1], syscall.MNT_DETACH)
		}
	}
	return nil
}

// clear removes all containers and networks. Otherwise the bridges and address ranges of the networks would remain on
// the machine.
func (d *daemon) clear() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	containers, err := d.api.ContainerList(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		return err
	}
	for _, c := range containers.Items {
		// The container may already be removed, or its removal may be in progress.
		if _, err := d.api.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true}); err != nil &&
			!errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
			return err
		}
	}
	_, err = d.api.NetworkPrune(ctx, client.NetworkPruneOptions{})
	return err
}

// processesOf lists containerd and the shims with a directory in their arguments, and the processes in containers below
// them.
func processesOf(dir string) []int {
	var pids []int
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		line, err := os.ReadFile(f)
		program, _, _ := strings.Cut(string(line), "\x00")
		if err != nil || !strings.Contains(string(line), dir) ||
			!strings.HasPrefix(filepath.Base(program), "containerd") {
			continue
		}
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		for _, child := range strings.Fields(string(children)) {
			if n, err := strconv.Atoi(child); err == nil && strings.Contains(program, "shim") {
				pids = append(pids, n)
			}
		}
		pids = append(pids, pid)
	}
	return pids
}

// buildImage builds testdata/app and writes an archive from which its image can be imported.
func buildImage(dir string) (string, error) {
	app, archive := filepath.Join(dir, "app"), filepath.Join(dir, "app.tar")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", app, "./testdata/app")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the app of the tests: %w %s", err, out)
	}
	data, err := os.ReadFile(app)
	if err != nil {
		return "", err
	}
	f, err := os.Create(archive)
	if err != nil {
		return "", err
	}
	w := tar.NewWriter(f)
	for _, h := range []tar.Header{
		{Name: "data/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "data/seed", Typeflag: tar.TypeReg, Mode: 0o644}, // Docker copies it to new volumes
		{Name: "app", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(data))},
	} {
		err = errors.Join(err, w.WriteHeader(&h))
	}
	_, werr := w.Write(data)
	return archive, errors.Join(err, werr, w.Close(), f.Close())
}

const imageName = "hubrelay/app:1"

// load imports the image under a name.
func (d *daemon) load(name string, changes ...string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	ctx := context.Background()
	r, err := d.api.ImageImport(ctx, client.ImageImportSource{Source: f, SourceName: "-"}, name,
		client.ImageImportOptions{Changes: changes})
	if err == nil {
		_, err = io.Copy(io.Discard, r)
		err = errors.Join(err, r.Close())
	}
	_ = f.Close() // the client may have closed it
	return err
}

// driverTask is the task of a driver in another process.
type driverTask struct {
	Migration relay.Migration
	At        string // the point at which the process sends itself a signal
	Freeze    bool   // send SIGSTOP instead of SIGKILL
	Config    Config
}

// runDriver reads a task, runs its migration, and prints /proc/self/status, which contains the peak memory.
func runDriver() error {
	var task driverTask
	if err := json.NewDecoder(os.Stdin).Decode(&task); err != nil {
		return err
	}
	reached := func(point string) {
		if point != task.At {
			return
		}
		if task.Freeze {
			_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
			return
		}
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	d := New(&task.Config)
	d.stepHook = reached
	err := d.Migrate(context.Background(), task.Migration, func(p relay.Progress) {
		if p.Bytes > 0 {
			reached(p.Step + " in progress")
		}
	})
	status, _ := os.ReadFile("/proc/self/status")
	_, _ = os.Stdout.Write(status)
	return err
}

// dialStdio implements docker system dial-stdio.
func dialStdio() error {
	c, err := net.Dial("unix", os.Getenv(socketVariable))
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(c, os.Stdin)
		if half, ok := c.(*net.UnixConn); ok {
			_ = half.CloseWrite()
		}
	}()
	_, err = io.Copy(os.Stdout, c)
	return err
}

// MarshalJSON returns a JSON string that UnmarshalJSON can parse.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }
