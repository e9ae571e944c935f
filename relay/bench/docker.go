package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

const (
	dockerFiles = 8
	dockerSize  = 128 << 20
)

// dockerPair is two Docker hosts. A container with a volume moves between them.
type dockerPair struct {
	at, other *dockerd // current host of the container, and the other one
	mover     *part
	best      map[string]float64 // MB/s
}

// measureDocker compares the Docker driver, which moves a container, with `tar | tar` between the directories of the
// volumes, and with Docker's archive API alone, which the driver uses. The best round of each counts. The time of the
// driver is that of its copy step, including checksums.
func measureDocker(ctx context.Context, r *rig) ([]row, error) {
	dir, err := os.MkdirTemp(r.dir, "")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	p := &dockerPair{best: map[string]float64{}}
	for i, host := range []**dockerd{&p.at, &p.other} {
		if *host, err = startDockerd(ctx, filepath.Join(dir, "ab"[i:i+1])); err != nil {
			return nil, err
		}
		defer (*host).stop()
	}
	if err := p.at.createContainer(ctx, moved); err != nil {
		return nil, err
	}
	if err := fillVolume(p.at.volumePath(moved), dockerFiles, dockerSize); err != nil {
		return nil, err
	}
	program := filepath.Join(filepath.Dir(r.daemon), "hubrelay-docker")
	if p.mover, err = startRole(ctx, roleMover, program, "unix://"+p.at.socket, "unix://"+p.other.socket); err != nil {
		return nil, err
	}
	defer p.mover.stop()
	for round := range copyRounds {
		if err := p.runRound(ctx, round); err != nil {
			return nil, err
		}
	}
	child, err := childOf(p.mover.cmd.Process.Pid)
	if err != nil {
		return nil, err
	}
	memory, err := memoryMiB(child, "VmHWM")
	if err != nil {
		return nil, err
	}
	const what = "Docker volume copied, 1 GiB in 8 files"
	return []row{
		newRow(what, p.best["driver"], "MB/s", "tar | tar", p.best["tar"]).ratioAtLeast(0.8),
		newRow(what, p.best["driver"], "MB/s", "Docker's archives alone", p.best["archives"]).ratioAtLeast(0.8),
		newRow("most memory of the Docker driver", memory, "MiB", "the volume", dockerFiles*dockerSize>>20).atMost(64),
	}, nil
}

// runRound copies the volume once in each way, from its current host to the other.
func (p *dockerPair) runRound(ctx context.Context, round int) error {
	record := func(name string, seconds float64) {
		p.best[name] = max(p.best[name], dockerFiles*dockerSize/1e6/seconds)
	}
	timed := func(name string, do func() error) func() error {
		return func() error {
			took, err := timeCall(do)
			record(name, took.Seconds())
			return err
		}
	}
	return runInTurn(round,
		timed("tar", func() error {
			script := `mkdir "$2" && tar -C "$1" -c . | tar -C "$2" -x`
			target := filepath.Join(p.other.dir, "tar"+strconv.Itoa(round))
			return exec.CommandContext(ctx, "sh", "-c", script, "sh", p.at.volumePath(moved), target).Run()
		}),
		func() error {
			seconds, err := p.mover.moveInstance(filepath.Base(p.at.dir), filepath.Base(p.other.dir))
			p.at, p.other = p.other, p.at
			record("driver", seconds)
			return err
		},
		timed("archives", func() error { return p.at.copyArchive(ctx, moved, p.other) }),
	)
}
