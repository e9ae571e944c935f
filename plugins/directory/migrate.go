package directory

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/hubrelay/hubrelay/relay"
)

// move is one call of Migrate.
type move struct {
	relay.Migration
	driver   *Driver
	report   func(relay.Progress)
	src, dst place
	note     jobNote
	tree     *tree // what the copy step has made
}

// jobNote lies in both work folders and says what their contents belong to.
type jobNote struct {
	Job string `json:"job"`
	// Destination is the folder of the server to which the instance is on its way.
	Destination string `json:"destination"`
	// Stop is chosen anew each time the instance is stopped: copies of an earlier stop are worth nothing.
	Stop string `json:"stop"`
}

func readNote(p place) (jobNote, error) {
	var n jobNote
	data, err := os.ReadFile(p.in(fileJob))
	if errors.Is(err, fs.ErrNotExist) {
		return n, p.check()
	}
	if err == nil {
		err = json.Unmarshal(data, &n)
	}
	return n, err
}

func (n jobNote) write(p place) error {
	data, err := json.Marshal(n)
	if err != nil {
		return err
	}
	return p.overtaken(replaceFile(p.in(fileJob), data))
}

// found is what the disks say of a migration.
type found struct {
	srcHome     bool // the instance is in its place at the source
	srcInstance bool // it is stopped, in the work folder
	switched    bool // the destination may have it in its place
	ready       bool // a verified copy waits in the work folder
	dstHome     bool // something is in the instance's place at the destination
	lost        bool // the destination cannot be asked
}

// moved tells whether what is in place at the destination is this instance.
func (f found) moved() bool {
	return f.dstHome && !f.srcHome && !f.ready && (f.switched || !f.srcInstance)
}

func (v *move) look() (found, error) {
	var f found
	if err := v.src.check(); err != nil {
		return f, fmt.Errorf("the folder of server %s has vanished: %w", v.src.server, err)
	}
	for _, q := range []struct {
		path string
		to   *bool
	}{
		{v.src.home(), &f.srcHome},
		{v.src.in(dirInstance), &f.srcInstance},
		{v.src.in(fileSwitched), &f.switched},
	} {
		var err error
		if *q.to, err = exists(q.path); err != nil {
			return f, err
		}
	}
	err := v.dst.check()
	if errors.Is(err, relay.ErrSuperseded) {
		return f, err
	}
	if err == nil {
		f.dstHome, err = exists(v.dst.home())
	}
	if err == nil {
		f.ready, err = exists(v.dst.in(dirReady))
	}
	f.lost = err != nil
	return f, nil
}

func (v *move) run(ctx context.Context) error {
	v.driver.between(stepClaim)
	if err := v.claimSource(); err != nil {
		return err
	}
	if err := v.dst.claim(); err != nil {
		return v.back(ctx, fmt.Errorf("server %s cannot be used, is its folder mounted, and may it be written to? %w", v.dst.server, err))
	}
	v.completed(stepClaim)
	if v.Undo {
		return v.back(ctx, fmt.Errorf("the migration was called off; the instance is on server %s as before", v.src.server))
	}
	if err := v.forward(ctx); err != nil {
		return v.back(ctx, v.explain(err))
	}
	return nil
}

// claimSource claims a source at which the instance is or was: an empty folder, over which nothing is mounted now, is none.
func (v *move) claimSource() error {
	_, err := os.Stat(v.src.path)
	n, e := v.src.current()
	err = cmp.Or(err, e)
	never := err == nil && n == 0 // as far as one can see, nothing was ever begun here
	if never {
		_, err = os.Lstat(v.src.home())
	}
	if err == nil {
		err = v.src.claim()
	}
	if err == nil || errors.Is(err, relay.ErrSuperseded) {
		return err
	}
	err = fmt.Errorf("the instance %s cannot be found on server %s, is its folder mounted? %w", v.Instance, v.src.server, err)
	if never && !v.Undo && len(v.Done) == 0 {
		return err
	}
	return relay.Unsettled(err)
}

func (v *move) forward(ctx context.Context) error {
	for _, step := range []struct {
		id string
		do func(context.Context, found) error
	}{
		{stepStop, v.stop},
		{stepCopy, v.copy},
		{stepVerify, v.verify},
		{stepSwitch, v.switchOver},
		{stepStart, v.start},
		{stepClean, v.clean},
	} {
		v.driver.between(step.id)
		if err := ctx.Err(); err != nil {
			return err
		}
		f, err := v.look()
		if err == nil && f.lost {
			err = cmp.Or(v.dst.check(), fs.ErrNotExist)
		}
		if err == nil {
			err = step.do(ctx, f)
		}
		if err != nil {
			return err
		}
		v.completed(step.id)
	}
	return nil
}

func (v *move) completed(step string) { v.report(relay.Progress{Step: step, Completed: true}) }

// stop stops the instance and takes it out of its place.
func (v *move) stop(ctx context.Context, f found) error {
	switch {
	case f.srcHome && f.srcInstance:
		return fmt.Errorf("server %s has the instance twice, as %s and as %s; remove the one that is wrong", v.src.server, v.src.home(), v.src.in(dirInstance))
	case f.dstHome && !f.moved():
		return fmt.Errorf("server %s has something in the place of the instance, %s; move it away", v.dst.server, v.dst.home())
	case f.srcInstance:
		return v.goOn(f)
	case f.moved():
		return nil
	case !f.srcHome:
		return fmt.Errorf("the instance is gone: there is no %s on server %s", v.src.home(), v.src.server)
	}
	if err := v.checkOwners(); err != nil {
		return err
	}
	info, err := os.Lstat(v.src.home())
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s on server %s is not a folder", v.src.home(), v.src.server)
	}
	// It would be emptied with the instance's folder, whoever else it is for.
	if mount, err := mountBelow(v.src.home()); mount != "" || err != nil {
		return cmp.Or(err, fmt.Errorf("%s on server %s is a mount of its own inside the instance; unmount it, or mount it outside and link to it", mount, v.src.server))
	}
	if err := v.src.unmark(fileSwitched); err != nil {
		return err
	}
	v.note = jobNote{Job: v.JobID, Destination: v.dst.path, Stop: rand.Text()}
	if err := v.note.write(v.src); err != nil {
		return err
	}
	v.report(relay.Progress{Step: stepStop})
	if err := v.driver.keepers.stop(ctx, v.src); err != nil {
		return err
	}
	v.driver.between("stopped")
	err = v.src.rename(v.src.home(), v.src.in(dirInstance))
	if errors.Is(err, syscall.EXDEV) || errors.Is(err, syscall.EBUSY) {
		return fmt.Errorf("%s on server %s is a mount of its own and cannot be taken away; mount the folder above it: %w", v.src.home(), v.src.server, err)
	}
	return err
}

// checkOwners finds out before the instance is stopped that it could not be started again.
func (v *move) checkOwners() error {
	for _, p := range []place{v.src, v.dst} {
		if err := checkOwnerAt(p.path); err != nil {
			return fmt.Errorf("server %s: %w", p.server, err)
		}
	}
	_, err := readInstance(v.src.home())
	return err
}

// goOn takes up an instance that is stopped already. Where that was done to move it elsewhere, by a job that was lost with a
// part of Redis, it is ours now: that job has no way to the source's work folder any more.
func (v *move) goOn(f found) error {
	if err := v.sameJob(f); err != nil {
		return err
	}
	if v.note.Destination == v.dst.path {
		return nil
	}
	v.note = jobNote{Job: v.JobID, Destination: v.dst.path, Stop: rand.Text()}
	return v.note.write(v.src)
}

// sameJob refuses an instance that another job may have put in its place somewhere else.
func (v *move) sameJob(f found) (err error) {
	if v.note, err = readNote(v.src); err != nil {
		return err
	}
	if v.note.Destination != v.dst.path && f.switched {
		return relay.Unsettled(fmt.Errorf("job %s may have moved the instance to %s; if it is not there, remove %s", v.note.Job, v.note.Destination, v.src.in(fileSwitched)))
	}
	return nil
}

func (v *move) copy(ctx context.Context, f found) error {
	if f.moved() {
		return nil
	}
	note, err := readNote(v.dst)
	if err != nil {
		return err
	}
	if f.ready && note == v.note {
		return nil
	}
	if leaving, err := exists(v.dst.in(dirInstance)); leaving || err != nil {
		return cmp.Or(err, fmt.Errorf("another job has begun to move the instance away from server %s and is not over: %s", v.dst.server, v.dst.in(dirInstance)))
	}
	if err := v.dst.sweep(func(name string) bool {
		return leftover(name) && (note != v.note || name != dirReady && !isIncoming(name))
	}); err != nil {
		return err
	}
	if err := v.note.write(v.dst); err != nil {
		return err
	}
	v.tree, err = newTree(v)
	if err != nil {
		return err
	}
	return v.tree.copy(ctx)
}

func isIncoming(name string) bool { return strings.HasPrefix(name, dirIncoming) }

func leftover(name string) bool {
	return name == dirReady || isIncoming(name) || strings.HasPrefix(name, dirTrash) || strings.HasPrefix(name, fileJob+".")
}

// verify compares the copy with the checksums of what was read, and both with what is there now.
func (v *move) verify(ctx context.Context, f found) error {
	if f.moved() || f.ready {
		return nil
	}
	if err := v.tree.verify(ctx); err != nil {
		return err
	}
	v.driver.between("verified")
	if err := v.dst.rename(v.tree.root, v.dst.in(dirReady)); err != nil {
		return err
	}
	return v.dst.sweep(isIncoming)
}

func (v *move) switchOver(_ context.Context, f found) error {
	if f.moved() {
		return nil
	}
	if err := v.src.mark(fileSwitched); err != nil {
		return err
	}
	v.driver.between("marked")
	err := v.dst.rename(v.dst.in(dirReady), v.dst.home())
	if errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.ENOTDIR) {
		return fmt.Errorf("server %s has something in the place of the instance, %s; move it away", v.dst.server, v.dst.home())
	}
	return err
}

func (v *move) start(ctx context.Context, f found) error {
	if err := v.dst.unmark(fileStop); err != nil {
		return err
	}
	v.report(relay.Progress{Step: stepStart})
	err := v.driver.keepers.start(ctx, v.dst, f.srcInstance)
	switch {
	case err == nil || errors.Is(err, relay.ErrSuperseded) || ctx.Err() != nil:
		return err
	case !f.srcInstance: // there is nothing to go back to; its keeper goes on trying
		slog.Default().Warn("an instance was moved and does not start", "instance", v.Instance, "server", v.dst.server, "error", err)
		return nil
	}
	return fmt.Errorf("the instance does not start on server %s: %w; the end of its output.log says what it printed there", v.dst.server, err)
}

// clean gives the source up. Its first rename is the point of no return.
func (v *move) clean(_ context.Context, f found) error {
	if f.srcInstance {
		if err := v.giveUpSource(); err != nil {
			return err
		}
	}
	v.driver.between("given up")
	for _, name := range []string{fileSwitched, fileJob, fileStop} {
		if err := v.src.unmark(name); errors.Is(err, relay.ErrSuperseded) {
			return err
		}
	}
	for _, p := range []place{v.src, v.dst} {
		if err := p.sweep(leftover); errors.Is(err, relay.ErrSuperseded) {
			return err
		}
	}
	return nil
}

func (v *move) giveUpSource() error {
	keep, err := v.leavesVolumes()
	if err != nil {
		return err
	}
	mount, err := mountBelow(v.src.in(dirInstance)) // since it was stopped
	if err != nil {
		return v.src.overtaken(err)
	}
	if !keep && mount == "" {
		return v.src.discard(v.src.in(dirInstance))
	}
	folder := filepath.Join(v.src.path, keptFolder, v.Instance)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	if err := syncFolder(filepath.Dir(folder)); err != nil {
		return err
	}
	return v.src.rename(v.src.in(dirInstance), filepath.Join(folder, fmt.Sprintf("%s-%d", v.JobID, v.Lease)))
}

// leavesVolumes tells whether the source has something that the destination did not get. What is called volumes and is no
// folder was copied.
func (v *move) leavesVolumes() (bool, error) {
	if v.CopyVolumes {
		return false, nil
	}
	path := filepath.Join(v.src.in(dirInstance), dirVolumes)
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, v.src.check()
	}
	if err != nil || !info.IsDir() {
		return false, err
	}
	volumes, err := os.ReadDir(path)
	return len(volumes) > 0, v.src.overtaken(err)
}

// explain makes a sentence for people of an error that says too little.
func (v *move) explain(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("server %s has no room left for the instance, make some or choose another server: %w", v.dst.server, err)
	}
	if e := v.dst.check(); e != nil {
		return fmt.Errorf("the folder of server %s has vanished, is it mounted? %w", v.dst.server, e)
	}
	return err
}
