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

// migration is one call of Migrate.
type migration struct {
	relay.Migration
	driver              *Driver
	report              func(relay.Progress)
	source, destination instanceDir
	note                jobNote
	tree                *treeCopy // created by the copy step
}

// jobNote is stored in both work directories and identifies their contents.
type jobNote struct {
	Job string `json:"job"`
	// Destination is the directory of the destination server.
	Destination string `json:"destination"`
	// Stop identifies one stop of the instance. Copies from an earlier stop are useless.
	Stop string `json:"stop"`
}

func readNote(p instanceDir) (jobNote, error) {
	var n jobNote
	data, err := os.ReadFile(p.workFile(fileJob))
	if errors.Is(err, fs.ErrNotExist) {
		return n, p.checkLease()
	}
	if err == nil {
		err = json.Unmarshal(data, &n)
	}
	return n, err
}

func (n jobNote) write(p instanceDir) error {
	data, err := json.Marshal(n)
	if err != nil {
		return err
	}
	return p.supersededError(replaceFile(p.workFile(fileJob), data))
}

// diskState is the state of a migration on the disks.
type diskState struct {
	atSource               bool // the instance is at its path on the source
	stoppedAtSource        bool // the stopped instance is in the work directory of the source
	switched               bool // the copy may have been renamed to its path on the destination
	ready                  bool // a verified copy is in the work directory of the destination
	atDestination          bool // the path of the instance exists on the destination
	destinationUnreachable bool // the destination's directory cannot be read
}

// isMoved reports whether the instance is at its path on the destination.
func (f diskState) isMoved() bool {
	return f.atDestination && !f.atSource && !f.ready && (f.switched || !f.stoppedAtSource)
}

// inspect reads the state of the migration from the disks.
func (v *migration) inspect() (diskState, error) {
	var f diskState
	if err := v.source.checkLease(); err != nil {
		return f, fmt.Errorf("the directory of server %s has disappeared: %w", v.source.server, err)
	}
	for _, q := range []struct {
		path string
		to   *bool
	}{
		{v.source.instancePath(), &f.atSource},
		{v.source.workFile(dirInstance), &f.stoppedAtSource},
		{v.source.workFile(fileSwitched), &f.switched},
	} {
		var err error
		if *q.to, err = exists(q.path); err != nil {
			return f, err
		}
	}
	err := v.destination.checkLease()
	if errors.Is(err, relay.ErrSuperseded) {
		return f, err
	}
	if err == nil {
		f.atDestination, err = exists(v.destination.instancePath())
	}
	if err == nil {
		f.ready, err = exists(v.destination.workFile(dirReady))
	}
	f.destinationUnreachable = err != nil
	return f, nil
}

func (v *migration) runMigration(ctx context.Context) error {
	v.driver.stepHook(stepClaim)
	if err := v.claimSource(); err != nil {
		return err
	}
	if err := v.destination.claim(); err != nil {
		return v.rollBack(ctx,
			fmt.Errorf("server %s cannot be used; check that its directory is mounted and writable: %w",
				v.destination.server, err))
	}
	v.reportStep(stepClaim)
	if v.Undo {
		return v.rollBack(ctx,
			fmt.Errorf("the migration was undone; the instance is on server %s as before", v.source.server))
	}
	if err := v.runSteps(ctx); err != nil {
		return v.rollBack(ctx, v.describeError(err))
	}
	return nil
}

// claimSource claims a source that has or had the instance. It rejects an empty directory, such as an unmounted one.
func (v *migration) claimSource() error {
	_, err := os.Stat(v.source.path)
	n, e := v.source.currentLease()
	err = cmp.Or(err, e)
	unclaimed := err == nil && n == 0 // the directory shows no trace of a migration
	if unclaimed {
		_, err = os.Lstat(v.source.instancePath())
	}
	if err == nil {
		err = v.source.claim()
	}
	if err == nil || errors.Is(err, relay.ErrSuperseded) {
		return err
	}
	err = fmt.Errorf("instance %s was not found on server %s; check that the server's directory is mounted: %w",
		v.Instance, v.source.server, err)
	if unclaimed && !v.Undo && len(v.Done) == 0 {
		return err
	}
	return relay.Indeterminate(err)
}

func (v *migration) runSteps(ctx context.Context) error {
	for _, step := range []struct {
		id string
		do func(context.Context, diskState) error
	}{
		{stepStop, v.stop},
		{stepCopy, v.copy},
		{stepVerify, v.verifyCopy},
		{stepSwitch, v.switchOver},
		{stepStart, v.start},
		{stepClean, v.cleanSource},
	} {
		v.driver.stepHook(step.id)
		if err := ctx.Err(); err != nil {
			return err
		}
		f, err := v.inspect()
		if err == nil && f.destinationUnreachable {
			err = cmp.Or(v.destination.checkLease(), fs.ErrNotExist)
		}
		if err == nil {
			err = step.do(ctx, f)
		}
		if err != nil {
			return err
		}
		v.reportStep(step.id)
	}
	return nil
}

func (v *migration) reportStep(step string) { v.report(relay.Progress{Step: step, Completed: true}) }

// stop stops the instance and renames its directory into the work directory.
func (v *migration) stop(ctx context.Context, f diskState) error {
	switch {
	case f.atSource && f.stoppedAtSource:
		return fmt.Errorf("server %s contains the instance twice, as %s and as %s; remove the wrong one",
			v.source.server, v.source.instancePath(), v.source.workFile(dirInstance))
	case f.atDestination && !f.isMoved():
		return fmt.Errorf("server %s has something in the place of the instance, %s; move it away",
			v.destination.server, v.destination.instancePath())
	case f.stoppedAtSource:
		return v.adoptStopped(f)
	case f.isMoved():
		return nil
	case !f.atSource:
		return fmt.Errorf("the instance has disappeared: %s does not exist on server %s", v.source.instancePath(),
			v.source.server)
	}
	if err := v.checkOwners(); err != nil {
		return err
	}
	info, err := os.Lstat(v.source.instancePath())
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s on server %s is not a directory", v.source.instancePath(), v.source.server)
	}
	// Removing the instance's directory would also remove the files in a mount.
	if mount, err := mountBelow(v.source.instancePath()); mount != "" || err != nil {
		return cmp.Or(
			err, fmt.Errorf(
				"%s on server %s is a mount point inside the instance; unmount it, or mount it outside and "+
					"link to it", mount, v.source.server,
			),
		)
	}
	if err := v.source.removeMarker(fileSwitched); err != nil {
		return err
	}
	v.note = jobNote{Job: v.JobID, Destination: v.destination.path, Stop: rand.Text()}
	if err := v.note.write(v.source); err != nil {
		return err
	}
	v.report(relay.Progress{Step: stepStop})
	if err := v.driver.agents.stopAgent(ctx, v.source); err != nil {
		return err
	}
	v.driver.stepHook("stopped")
	err = v.source.rename(v.source.instancePath(), v.source.workFile(dirInstance))
	if errors.Is(err, syscall.EXDEV) || errors.Is(err, syscall.EBUSY) {
		return fmt.Errorf(
			"%s on server %s is a mount point and cannot be renamed; mount its parent directory: %w",
			v.source.instancePath(), v.source.server, err,
		)
	}
	return err
}

// checkOwners checks, before the instance is stopped, that the owners of its files allow a restart.
func (v *migration) checkOwners() error {
	for _, p := range []instanceDir{v.source, v.destination} {
		if err := checkOwnerAt(p.path); err != nil {
			return fmt.Errorf("server %s: %w", p.server, err)
		}
	}
	_, err := readInstance(v.source.instancePath())
	return err
}

// adoptStopped adopts a stopped instance. Another job may have stopped it and then been lost with data in Redis. This
// job owns the instance now, because the lost job can no longer use the source's work directory.
func (v *migration) adoptStopped(f diskState) error {
	if err := v.checkJob(f); err != nil {
		return err
	}
	if v.note.Destination == v.destination.path {
		return nil
	}
	v.note = jobNote{Job: v.JobID, Destination: v.destination.path, Stop: rand.Text()}
	return v.note.write(v.source)
}

// checkJob reads the note, and rejects an instance that another job may have moved to another server.
func (v *migration) checkJob(f diskState) (err error) {
	if v.note, err = readNote(v.source); err != nil {
		return err
	}
	if v.note.Destination != v.destination.path && f.switched {
		return relay.Indeterminate(fmt.Errorf("job %s may have moved the instance to %s; if it is not there, remove %s",
			v.note.Job, v.note.Destination, v.source.workFile(fileSwitched)))
	}
	return nil
}

func (v *migration) copy(ctx context.Context, f diskState) error {
	if f.isMoved() {
		return nil
	}
	note, err := readNote(v.destination)
	if err != nil {
		return err
	}
	if f.ready && note == v.note {
		return nil
	}
	if leaving, err := exists(v.destination.workFile(dirInstance)); leaving || err != nil {
		return cmp.Or(
			err, fmt.Errorf("another job has started to move the instance away from server %s and has not finished: %s",
				v.destination.server, v.destination.workFile(dirInstance)),
		)
	}
	if err := v.destination.discardMatching(func(name string) bool {
		return isLeftover(name) && (note != v.note || name != dirReady && !isIncoming(name))
	}); err != nil {
		return err
	}
	if err := v.note.write(v.destination); err != nil {
		return err
	}
	v.tree, err = newTree(v)
	if err != nil {
		return err
	}
	return v.tree.copy(ctx)
}

func isIncoming(name string) bool { return strings.HasPrefix(name, dirIncoming) }

func isLeftover(name string) bool {
	return name == dirReady || isIncoming(name) || strings.HasPrefix(name, dirTrash) ||
		strings.HasPrefix(name, fileJob+".")
}

// verifyCopy verifies the copy and marks it as ready by renaming it.
func (v *migration) verifyCopy(ctx context.Context, f diskState) error {
	if f.isMoved() || f.ready {
		return nil
	}
	if err := v.tree.verify(ctx); err != nil {
		return err
	}
	v.driver.stepHook("verified")
	if err := v.destination.rename(v.tree.root, v.destination.workFile(dirReady)); err != nil {
		return err
	}
	return v.destination.discardMatching(isIncoming)
}

func (v *migration) switchOver(_ context.Context, f diskState) error {
	if f.isMoved() {
		return nil
	}
	if err := v.source.createMarker(fileSwitched); err != nil {
		return err
	}
	v.driver.stepHook("marked")
	err := v.destination.rename(v.destination.workFile(dirReady), v.destination.instancePath())
	if errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.ENOTDIR) {
		return fmt.Errorf("server %s has something in the place of the instance, %s; move it away",
			v.destination.server, v.destination.instancePath())
	}
	return err
}

func (v *migration) start(ctx context.Context, f diskState) error {
	if err := v.destination.removeMarker(fileStop); err != nil {
		return err
	}
	v.report(relay.Progress{Step: stepStart})
	err := v.driver.agents.ensureStarted(ctx, v.destination, f.stoppedAtSource)
	switch {
	case err == nil || errors.Is(err, relay.ErrSuperseded) || ctx.Err() != nil:
		return err
	case !f.stoppedAtSource: // the migration cannot be undone, and the agent continues to restart the command
		slog.Default().Warn("moved instance did not start", "instance", v.Instance, "server",
			v.destination.server, "error", err)
		return nil
	}
	return fmt.Errorf(
		"the instance did not start on server %s: %w; see the end of its output.log",
		v.destination.server, err,
	)
}

// cleanSource removes or keeps the source, and cleans the work directories. After its first rename, the migration
// cannot be undone.
func (v *migration) cleanSource(_ context.Context, f diskState) error {
	if f.stoppedAtSource {
		if err := v.removeSource(); err != nil {
			return err
		}
	}
	v.driver.stepHook("given up")
	for _, name := range []string{fileSwitched, fileJob, fileStop} {
		if err := v.source.removeMarker(name); errors.Is(err, relay.ErrSuperseded) {
			return err
		}
	}
	for _, p := range []instanceDir{v.source, v.destination} {
		if err := p.discardMatching(isLeftover); errors.Is(err, relay.ErrSuperseded) {
			return err
		}
	}
	return nil
}

func (v *migration) removeSource() error {
	keep, err := v.sourceHasExtraVolumes()
	if err != nil {
		return err
	}
	mount, err := mountBelow(v.source.workFile(dirInstance)) // mounted after the stop
	if err != nil {
		return v.source.supersededError(err)
	}
	if !keep && mount == "" {
		return v.source.removeTree(v.source.workFile(dirInstance))
	}
	dir := filepath.Join(v.source.path, dirKept, v.Instance)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := syncDir(filepath.Dir(dir)); err != nil {
		return err
	}
	return v.source.rename(v.source.workFile(dirInstance),
		filepath.Join(dir, fmt.Sprintf("%s-%d", v.JobID, v.Lease)))
}

// sourceHasExtraVolumes reports whether the source has volumes that were not copied. An entry named volumes that is not
// a directory is always copied.
func (v *migration) sourceHasExtraVolumes() (bool, error) {
	if v.CopyVolumes {
		return false, nil
	}
	path := filepath.Join(v.source.workFile(dirInstance), dirVolumes)
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, v.source.checkLease()
	}
	if err != nil || !info.IsDir() {
		return false, err
	}
	volumes, err := os.ReadDir(path)
	return len(volumes) > 0, v.source.supersededError(err)
}

// describeError adds the server and advice for the operator to an error about disk space or a missing directory.
func (v *migration) describeError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("server %s has not enough disk space for the instance; free some space or choose another "+
			"server: %w", v.destination.server, err)
	}
	if e := v.destination.checkLease(); e != nil {
		return fmt.Errorf("the directory of server %s has disappeared; check that it is mounted: %w",
			v.destination.server, e)
	}
	return err
}
