package directory

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

const (
	// stopGrace is what a command gets between SIGTERM and SIGKILL.
	stopGrace = 10 * time.Second
	// lookEvery is how often a keeper looks whether it has to end.
	lookEvery = 200 * time.Millisecond
	// leastPause and mostPause bound the pause before a command is started again.
	leastPause = 200 * time.Millisecond
	mostPause  = 30 * time.Second
)

// keeperState is what a keeper says of itself, in a file beside its lock.
type keeperState struct {
	Lease int64 `json:"lease"`
	PID   int   `json:"pid,omitempty"`
	// Steady is set once the command has run for a while in this folder, and stays.
	Steady bool `json:"steady"`
	// Failure is why the command did not; it is empty while that is open.
	Failure string `json:"failure,omitempty"`
}

func readState(home string) (keeperState, error) {
	var s keeperState
	data, err := readSmall(filepath.Join(home, fileKeeper))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	return s, err
}

// keeper runs the command of one instance. Its working directory is the instance's folder, wherever that is moved.
type keeper struct {
	place
	steady time.Duration
	// grace is the time between SIGTERM and SIGKILL.
	grace time.Duration
	state keeperState
	out   *output
}

// Keep is the main function of a keeper, a process that keeps the command of one instance running. The arguments are those
// that the driver appends to Options.Keeper: the server's path, the instance, the lease and how long a command runs to count
// as started, and the relay's ID. It returns when it was told to
// end, when ctx ends, and at once where another keeper works in the folder or the lease is no longer the one that counts
// there. It changes the working directory of the process.
func Keep(ctx context.Context, args []string) error { return keep(ctx, args, stopGrace) }

func keep(ctx context.Context, args []string, grace time.Duration) error {
	if len(args) != agentArgs {
		return errors.New("only the driver of migrations starts agents; their arguments are PATH INSTANCE LEASE STEADY RELAY")
	}
	lease, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil || lease < 0 {
		return fmt.Errorf("lease %q is not a number", args[2])
	}
	if err := checkElement("instance", args[1]); err != nil {
		return err
	}
	steady, err := time.ParseDuration(args[3])
	if err != nil {
		return err
	}
	k := &keeper{place: place{path: args[0], instance: args[1], lease: lease}, steady: steady, grace: grace}
	if err := os.Chdir(k.home()); err != nil {
		return err
	}
	lock, taken, err := takeLock(fileLock)
	if err != nil || !taken {
		return err
	}
	defer func() { _ = lock.Close() }()
	// The lock is held, so whoever moves the folder away from now on asks us first, and what was claimed before shows here.
	if n, err := k.current(); err != nil || n != lease || k.mustEnd() {
		return cmp.Or(err, fmt.Errorf("the instance %s is being migrated, or was", k.instance))
	}
	if k.out, err = openOutput(fileOutput, mostOutput); err != nil {
		return err
	}
	defer func() { _ = k.out.Close() }()
	return k.run(ctx)
}

// mustEnd tells whether the current lease wants the command stopped, or the folder is not in its place any more.
func (k *keeper) mustEnd() bool {
	here, err := os.Stat(".")
	if err != nil {
		return true
	}
	home, err := os.Lstat(k.home())
	if err != nil || !os.SameFile(here, home) {
		return !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.ESTALE)
	}
	n, err := k.current()
	if err != nil || n == 0 {
		return false
	}
	now := k.place
	now.lease = n
	for _, name := range []string{fileStop, dirInstance} {
		if there, _ := exists(now.in(name)); there {
			return true
		}
	}
	return false
}

// run starts the command again and again.
func (k *keeper) run(ctx context.Context) error {
	// The command dies with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	former, _ := readState(".")
	k.state = keeperState{Lease: k.lease, Steady: former.Steady}
	pause := leastPause
	for {
		k.tell()
		began := time.Now()
		mustEnd, how := k.once(ctx)
		if mustEnd {
			return nil
		}
		if time.Since(began) > time.Minute {
			pause = leastPause
		}
		k.out.note("the command %s; it is started again", how)
		if !k.state.Steady {
			k.state.Failure = how
		}
		wait := time.NewTimer(pause/2 + rand.N(pause))
		if k.sleep(ctx, wait.C) {
			return nil
		}
		pause = min(2*pause, mostPause)
	}
}

// sleep waits until c says something, and tells whether the keeper must end instead.
func (k *keeper) sleep(ctx context.Context, c <-chan time.Time) bool {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case <-c:
			return false
		case <-ctx.Done():
			return true
		case <-look.C:
			if k.mustEnd() {
				return true
			}
		}
	}
}

// once runs the command until it ends, and tells how it did, or until the keeper must end.
func (k *keeper) once(ctx context.Context) (mustEnd bool, how string) {
	cmd, err := k.start()
	if err != nil {
		return false, "could not be started: " + err.Error()
	}
	k.state.PID = cmd.Process.Pid
	k.tell()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // how it ended shows in its state
	}()
	steady := time.NewTimer(k.steady)
	defer steady.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case <-done:
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			return false, "ended with " + cmd.ProcessState.String()
		case <-steady.C:
			// Where we were held up it may have ended long before, and done says so only later.
			if !ended(cmd.Process.Pid, done) {
				k.state.Steady, k.state.Failure = true, ""
				k.tell()
			}
		case <-ctx.Done():
			k.end(cmd, done)
			return true, ""
		case <-look.C:
			if k.mustEnd() {
				k.end(cmd, done)
				return true, ""
			}
		}
	}
}

func (k *keeper) start() (*exec.Cmd, error) {
	if err := checkOwnerAt(k.path); err != nil {
		return nil, err
	}
	c, err := readInstance(".")
	if err != nil {
		return nil, err
	}
	if len(c.Command) == 0 {
		return nil, fmt.Errorf("there is no command in %s", fileInstance)
	}
	cmd := exec.Command(c.Command[0], c.Command[1:]...)
	// A program beside instance.json is meant where its name says so: ./program
	if cmd.Dir, err = os.Getwd(); err != nil {
		return nil, err
	}
	cmd.Env = c.environment(k.instance)
	cmd.Stdout, cmd.Stderr = k.out.pipe, k.out.pipe
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithKeeper(cmd.SysProcAttr)
	return cmd, cmd.Start()
}

// end stops the command and all of its process group.
func (k *keeper) end(cmd *exec.Cmd, done <-chan struct{}) {
	group := -cmd.Process.Pid
	_ = syscall.Kill(group, syscall.SIGTERM)
	grace := time.NewTimer(k.grace)
	defer grace.Stop()
	look := time.NewTicker(lookEvery / 4)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			select {
			case <-done:
				if !groupRuns(cmd.Process.Pid) {
					_ = syscall.Kill(group, syscall.SIGKILL) // what was born while we looked
					return
				} // else children of the command are still at work
			default:
			}
		case <-grace.C:
			_ = syscall.Kill(group, syscall.SIGKILL)
			<-done
			return
		}
	}
}

// tell writes the state where others read it. On a full disk the command runs all the same.
func (k *keeper) tell() {
	if err := k.save(); err != nil {
		k.out.note("its state cannot be written: %v", err)
	}
}

func (k *keeper) save() error {
	data, err := json.Marshal(k.state)
	if err != nil {
		return err
	}
	return replaceFile(fileKeeper, data)
}
