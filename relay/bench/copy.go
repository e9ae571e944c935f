package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/hubrelay/hubrelay/plugins/directory"
	"github.com/hubrelay/hubrelay/plugins/host"
	"github.com/hubrelay/hubrelay/relay"
)

const (
	copyRounds = 3
	copyHuge   = 4 << 30
	moved      = "moved" // instance ID
)

// measureCopy compares the directory driver, which moves an instance, with `cp -a` of the same files. The best round
// of each counts. The time of the driver is that of its copy step, including checksums.
func measureCopy(ctx context.Context, r *rig) ([]row, error) {
	var rows []row
	for _, volume := range []struct {
		name        string
		files, size int
		bar         float64
	}{
		{"1 GiB in 8 files", 8, 128 << 20, 0.8},
		{"1 GiB in 8,000 files", 8000, 128 << 10, 0.8},
	} {
		ours, cp, _, err := r.measureThroughput(ctx, copyRounds, volume.files, volume.size)
		if err != nil {
			return nil, err
		}
		rows = append(rows, newRow("volume copied, "+volume.name, ours, "MB/s", "cp -a", cp).ratioAtLeast(volume.bar))
	}
	ours, cp, memory, err := r.measureThroughput(ctx, 1, 1, copyHuge)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(os.Stderr, "copy: 4 GiB at %.0f MB/s, cp %.0f\n", ours, cp)
	peak := newRow("most memory of the driver, a volume of 4 GiB", memory, "MiB", "the volume", copyHuge>>20)
	return append(rows, peak.atMost(64)), nil
}

// measureThroughput returns the throughput of the driver and of cp in MB/s, and the peak memory of the driver in MiB.
func (r *rig) measureThroughput(ctx context.Context, rounds, files, size int) (ours, cp, memory float64, err error) {
	dir, err := os.MkdirTemp(r.dir, "copy")
	if err != nil {
		return 0, 0, 0, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for _, server := range []string{"a", "b"} {
		if err := os.Mkdir(filepath.Join(dir, server), 0o700); err != nil {
			return 0, 0, 0, err
		}
	}
	if err := fillVolume(filepath.Join(dir, "a", moved, "volumes", "data"), files, size); err != nil {
		return 0, 0, 0, err
	}
	mover, err := startRole(ctx, roleMover, directory.Name, filepath.Join(dir, "a"), filepath.Join(dir, "b"))
	if err != nil {
		return 0, 0, 0, err
	}
	defer mover.stop()
	megabytes := float64(files) * float64(size) / 1e6
	from, to := "a", "b"
	for round := range rounds {
		peer := func() error {
			target := filepath.Join(dir, "cp"+strconv.Itoa(round))
			took, err := timeCall(func() error {
				return exec.CommandContext(ctx, "cp", "-a", filepath.Join(dir, from, moved), target).Run()
			})
			cp = max(cp, megabytes/took.Seconds())
			return errors.Join(err, emptyFiles(target))
		}
		driver := func() error {
			seconds, err := mover.moveInstance(from, to)
			from, to = to, from
			ours = max(ours, megabytes/seconds)
			return err
		}
		if err := runInTurn(round, peer, driver); err != nil {
			return 0, 0, 0, err
		}
	}
	memory, err = memoryMiB(mover.cmd.Process.Pid, "VmHWM")
	return ours, cp, memory, err
}

// runInTurn starts with another function in each round, and flushes the disks before each.
func runInTurn(round int, all ...func() error) error {
	for i := range all {
		syscall.Sync()
		if err := all[(round+i)%len(all)](); err != nil {
			return err
		}
	}
	return nil
}

// moveInstance lets a mover move the instance and returns the time of the copy in seconds.
func (p *part) moveInstance(from, to string) (float64, error) {
	response, err := p.request(from, to)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(response, 64)
}

// emptyFiles frees the space of the files in a directory without removing them. For some minutes, ext4 skips the
// inodes of removed files, which makes creating files several times slower.
func emptyFiles(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		return os.Truncate(path, 0)
	})
}

// fillVolume writes files of random bytes, a hundred per directory.
func fillVolume(dir string, files, size int) error {
	for i := range files {
		subdir := filepath.Join(dir, strconv.Itoa(i/100))
		if err := os.MkdirAll(subdir, 0o700); err != nil {
			return err
		}
		f, err := os.Create(filepath.Join(subdir, strconv.Itoa(i)))
		if err != nil {
			return err
		}
		_, err = io.CopyN(f, rand.Reader, int64(size))
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// playMover moves an instance between the servers a and b, as its commands request, and prints the time of each copy
// in seconds. Its arguments are the driver (the built-in one, or a program) and the locations of the servers.
func playMover(lines *bufio.Scanner, args []string) error {
	setting, driver := "path", relay.Driver(directory.New(directory.Options{}))
	if args[0] != directory.Name {
		plugin, err := host.NewDriver(host.Options{Name: "bench", Command: args[:1]})
		if err != nil {
			return err
		}
		setting, driver = "host", plugin
	}
	servers := map[string]relay.Server{}
	for i, name := range []string{"a", "b"} {
		servers[name] = relay.Server{ID: name, Settings: fmt.Appendf(nil, "{%q:%q}", setting, args[1+i])}
	}
	if err := driver.Configure(context.Background(), slices.Collect(maps.Values(servers))); err != nil {
		return err
	}
	for lease := int64(1); ; lease++ {
		command, err := readCommand(lines)
		if err != nil {
			return driver.Close() // the input has ended
		}
		var from, to string
		if _, err := fmt.Sscan(command, &from, &to); err != nil {
			return err
		}
		var startedAt, endedAt time.Time
		err = driver.Migrate(context.Background(), relay.Migration{
			JobID: "job" + strconv.FormatInt(lease, 10), Lease: lease, Instance: moved,
			Stateful: true, CopyVolumes: true, Source: servers[from], Destination: servers[to],
		}, func(p relay.Progress) {
			switch {
			case p.Step == "copy" && p.Completed:
				endedAt = time.Now()
			case p.Step == "stop" && p.Completed:
				startedAt = time.Now()
			}
		})
		if err != nil {
			return err
		}
		fmt.Println(endedAt.Sub(startedAt).Seconds())
	}
}
