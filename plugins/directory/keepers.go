package directory

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	// pollEvery is how often the driver looks whether a keeper has done what it was asked.
	pollEvery = 25 * time.Millisecond
	// stopWithin bounds how long a keeper may take to stop its command: the grace, and a busy machine.
	stopWithin = stopGrace + 20*time.Second
	// startWithin bounds how long a keeper may take to start a command, on a busy machine.
	startWithin = 20 * time.Second
)

// keepers starts and stops keepers. They are sessions of their own, and are found again by the locks that they hold.
type keepers struct {
	argv []string
	// relay is the ID of the relay that the keepers belong to.
	relay string
	// steady is how long a command has to run to count as started.
	steady time.Duration

	mu   sync.Mutex
	pids map[int]struct{}
}

// spawn starts a keeper and does not wait for it.
func (ks *keepers) spawn(p place) (int, error) {
	if len(ks.argv) == 0 {
		return 0, errors.New("this driver has no program to keep commands running")
	}
	args := append(ks.argv[1:len(ks.argv):len(ks.argv)], p.path, p.instance, strconv.FormatInt(p.lease, 10), ks.steady.String(), ks.relay)
	cmd := exec.Command(ks.argv[0], args...)
	cmd.Env = inherited()
	cmd.Dir = "/"
	keepFiles()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	ks.mu.Lock()
	defer ks.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	pid := cmd.Process.Pid
	ks.pids[pid] = struct{}{}
	return pid, cmd.Process.Release()
}

// alive tells whether a keeper that we started still runs, and takes note of those that ended.
func (ks *keepers) alive(pid int) bool {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	for pid := range ks.pids {
		var status syscall.WaitStatus
		if n, err := syscall.Wait4(pid, &status, syscall.WNOHANG, nil); n == pid || errors.Is(err, syscall.ECHILD) {
			delete(ks.pids, pid)
		}
	}
	_, ok := ks.pids[pid]
	return ok
}

// poll asks until there is an answer, an error, or no time left.
func poll(ctx context.Context, within time.Duration, ask func() (bool, error)) (bool, error) {
	late := time.NewTimer(within)
	defer late.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if ok, err := ask(); ok || err != nil {
			return ok, err
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-late.C:
			return ask() // what has happened while we were held up counts
		case <-tick.C:
		}
	}
}

// stop ends the keeper of a place, wherever it runs. None starts there until the mark is removed.
func (ks *keepers) stop(ctx context.Context, p place) error {
	if err := p.mark(fileStop); err != nil {
		return err
	}
	stopped, err := poll(ctx, stopWithin, func() (bool, error) {
		running, err := Kept(p.home())
		return !running, err
	})
	ks.alive(0)
	if err == nil && !stopped {
		err = fmt.Errorf("the keeper of instance %s on server %s does not stop; look for a process that holds %s/%s", p.instance, p.server, p.home(), fileLock)
	}
	return p.overtakenOr(err)
}

// start sees to it that a keeper works in a place whose instance has a command. Where steady is set, it waits until the
// command has run for a while.
func (ks *keepers) start(ctx context.Context, p place, steady bool) error {
	c, err := readInstance(p.home())
	if err != nil || len(c.Command) == 0 {
		return p.overtaken(err)
	}
	running, err := Kept(p.home())
	if err != nil {
		return err
	}
	pid := 0
	if !running {
		if pid, err = ks.spawn(p); err != nil {
			return fmt.Errorf("start the keeper: %w", err)
		}
	}
	started, err := poll(ctx, ks.steady+startWithin, func() (bool, error) {
		// Whether it lives is asked first: what it did before its end shows in the answers to the other questions.
		alive := pid == 0 || ks.alive(pid)
		running, err := Kept(p.home())
		if err != nil || running && !steady {
			return running, err
		}
		state, err := readState(p.home())
		switch {
		case err != nil:
			return false, err
		case !running && alive:
			return false, nil // it has not come so far
		case !running:
			return false, errors.New("its keeper ended at once")
		case state.Failure != "" && (pid == 0 || state.Lease == p.lease):
			return false, fmt.Errorf("its command %s", state.Failure)
		}
		return state.Steady && (pid == 0 || state.Lease == p.lease), nil
	})
	if err == nil && !started {
		err = fmt.Errorf("its command was not running within %v", ks.steady+startWithin)
	}
	return p.overtakenOr(err)
}

// overtakenOr says ErrSuperseded instead of an error where a higher lease holds the place.
func (p place) overtakenOr(err error) error {
	if e := p.check(); e != nil && p.lease > 0 {
		return e
	}
	return err
}

// resume starts the keeper of an instance that ought to run where it is, unless a migration has it in hand.
func (ks *keepers) resume(p place) error {
	c, err := readInstance(p.home())
	if err != nil || len(c.Command) == 0 {
		return err
	}
	if p.lease, err = p.current(); err != nil {
		return err
	}
	for _, name := range []string{fileStop, dirInstance} {
		if held, err := exists(p.in(name)); held || err != nil {
			return err
		}
	}
	if running, err := Kept(p.home()); running || err != nil {
		return err
	}
	_, err = ks.spawn(p)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w; is the program still there?", err)
	}
	return err
}
