package directory

import (
	"cmp"
	"context"
	"crypto/rand"
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

func (m *migration) runMigration(ctx context.Context) error {
	m.driver.stepHook(stepClaim)
	if err := m.claimSource(); err != nil {
		return err
	}
	if err := m.destination.claim(); err != nil {
		return m.rollBack(ctx,
			fmt.Errorf("server %s cannot be used; check that its directory is mounted and writable: %w",
				m.destination.server, err))
	}
	m.reportStep(stepClaim)
	if m.Undo {
		return m.rollBack(ctx,
			fmt.Errorf("the instance is back on server %s", m.source.server))
	}
	if err := m.runSteps(ctx); err != nil {
		return m.rollBack(ctx, m.describeError(err))
	}
	return nil
}

// claimSource claims a source that has or had the instance. It rejects an empty directory, such as an unmounted one.
func (m *migration) claimSource() error {
	_, err := os.Stat(m.source.path)
	n, e := m.source.currentLease()
	err = cmp.Or(err, e)
	unclaimed := err == nil && n == 0 // the directory shows no trace of a migration
	if unclaimed {
		_, err = os.Lstat(m.source.instancePath())
	}
	if err == nil {
		err = m.source.claim()
	}
	if err == nil || errors.Is(err, relay.ErrSuperseded) {
		return err
	}
	err = fmt.Errorf("instance %s was not found on server %s; check that the server's directory is mounted: %w",
		m.Instance, m.source.server, err)
	if unclaimed && !m.Undo && len(m.Done) == 0 {
		return err
	}
	return relay.Indeterminate(err)
}

func (m *migration) runSteps(ctx context.Context) error {
	for _, step := range []struct {
		id string
		do func(context.Context, diskState) error
	}{
		{stepStop, m.stop},
		{stepCopy, m.copy},
		{stepVerify, m.verifyCopy},
		{stepSwitch, m.switchOver},
		{stepStart, m.start},
		{stepClean, m.cleanSource},
	} {
		m.driver.stepHook(step.id)
		if err := ctx.Err(); err != nil {
			return err
		}
		f, err := m.inspect()
		if err == nil && f.destinationUnreachable {
			err = cmp.Or(m.destination.checkLease(), fs.ErrNotExist)
		}
		if err == nil {
			err = step.do(ctx, f)
		}
		if err != nil {
			return err
		}
		m.reportStep(step.id)
	}
	return nil
}

func (m *migration) reportStep(step string) { m.report(relay.Progress{Step: step, Completed: true}) }

// stop stops the instance and renames its directory into the work directory.
func (m *migration) stop(ctx context.Context, f diskState) error {
	switch {
	case f.atSource && f.stoppedAtSource:
		return fmt.Errorf("server %s contains the instance twice, as %s and as %s; remove the wrong one",
			m.source.server, m.source.instancePath(), m.source.workFile(dirInstance))
	case f.atDestination && !f.isMoved():
		return fmt.Errorf("server %s has something in the place of the instance, %s; move it away",
			m.destination.server, m.destination.instancePath())
	case f.stoppedAtSource:
		return m.adoptStopped(f)
	case f.isMoved():
		return nil
	case !f.atSource:
		return fmt.Errorf("%w: %s does not exist on server %s", errDisappeared, m.source.instancePath(), m.source.server)
	}
	if err := m.checkOwners(); err != nil {
		return err
	}
	info, err := os.Lstat(m.source.instancePath())
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s on server %s is not a directory", m.source.instancePath(), m.source.server)
	}
	// Removing the instance's directory would also remove the files in a mount.
	if mount, err := mountBelow(m.source.instancePath()); mount != "" || err != nil {
		return cmp.Or(
			err, fmt.Errorf(
				"%s on server %s is a mount point inside the instance; unmount it, or mount it outside and "+
					"link to it", mount, m.source.server,
			),
		)
	}
	if err := m.source.removeMarker(fileSwitched); err != nil {
		return err
	}
	m.note = jobNote{Job: m.JobID, Destination: m.destination.path, Stop: rand.Text()}
	if err := m.note.write(m.source); err != nil {
		return err
	}
	m.report(relay.Progress{Step: stepStop})
	if err := m.driver.agents.stopAgent(ctx, m.source); err != nil {
		return err
	}
	m.driver.stepHook("stopped")
	err = m.source.rename(m.source.instancePath(), m.source.workFile(dirInstance))
	if errors.Is(err, syscall.EXDEV) || errors.Is(err, syscall.EBUSY) {
		return fmt.Errorf(
			"%s on server %s is a mount point and cannot be renamed; mount its parent directory: %w",
			m.source.instancePath(), m.source.server, err,
		)
	}
	return err
}

// checkOwners checks, before the instance is stopped, that the owners of its files allow a restart.
func (m *migration) checkOwners() error {
	for _, p := range []instanceDir{m.source, m.destination} {
		if err := checkOwnerAt(p.path); err != nil {
			return fmt.Errorf("server %s: %w", p.server, err)
		}
	}
	_, err := readInstance(m.source.instancePath())
	return err
}

// adoptStopped adopts a stopped instance. Another job may have stopped it and then been lost with data in Redis. This
// job owns the instance now, because the lost job can no longer use the source's work directory.
func (m *migration) adoptStopped(f diskState) error {
	if err := m.checkJob(f); err != nil {
		return err
	}
	if m.note.Destination == m.destination.path {
		return nil
	}
	m.note = jobNote{Job: m.JobID, Destination: m.destination.path, Stop: rand.Text()}
	return m.note.write(m.source)
}

// checkJob reads the note, and rejects an instance that another job may have moved to another server.
func (m *migration) checkJob(f diskState) (err error) {
	if m.note, err = readNote(m.source); err != nil {
		return err
	}
	if m.note.Destination != m.destination.path && f.switched {
		return relay.Indeterminate(fmt.Errorf("job %s may have moved the instance to %s; if it is not there, remove %s",
			m.note.Job, m.note.Destination, m.source.workFile(fileSwitched)))
	}
	return nil
}

func (m *migration) copy(ctx context.Context, f diskState) error {
	if f.isMoved() {
		return nil
	}
	note, err := readNote(m.destination)
	if err != nil {
		return err
	}
	if f.ready && note == m.note {
		return nil
	}
	if leaving, err := exists(m.destination.workFile(dirInstance)); leaving || err != nil {
		return cmp.Or(
			err, fmt.Errorf("another job has started to move the instance away from server %s and has not finished: %s",
				m.destination.server, m.destination.workFile(dirInstance)),
		)
	}
	if err := m.destination.discardMatching(func(name string) bool {
		return isLeftover(name) && (note != m.note || name != dirReady && !isIncoming(name))
	}); err != nil {
		return err
	}
	if err := m.note.write(m.destination); err != nil {
		return err
	}
	m.tree, err = newTree(m)
	if err != nil {
		return err
	}
	return m.tree.copy(ctx)
}

func isIncoming(name string) bool { return strings.HasPrefix(name, dirIncoming) }

func isLeftover(name string) bool {
	return name == dirReady || isIncoming(name) || strings.HasPrefix(name, dirTrash) ||
		strings.HasPrefix(name, fileJob+".")
}

// verifyCopy verifies the copy and marks it as ready by renaming it.
func (m *migration) verifyCopy(ctx context.Context, f diskState) error {
	if f.isMoved() || f.ready {
		return nil
	}
	if err := m.source.removeMarker(fileVerify); err != nil { // of an earlier attempt
		return err
	}
	if err := m.source.createMarker(fileVerify); err != nil {
		return err
	}
	if err := m.tree.verify(ctx); err != nil {
		return err
	}
	m.driver.stepHook("verified")
	if err := m.destination.rename(m.tree.root, m.destination.workFile(dirReady)); err != nil {
		return err
	}
	return m.destination.discardMatching(isIncoming)
}

func (m *migration) switchOver(_ context.Context, f diskState) error {
	if f.isMoved() {
		return nil
	}
	if err := m.source.createMarker(fileSwitched); err != nil {
		return err
	}
	m.driver.stepHook("marked")
	err := m.destination.rename(m.destination.workFile(dirReady), m.destination.instancePath())
	if errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.ENOTDIR) {
		return fmt.Errorf("server %s has something in the place of the instance, %s; move it away",
			m.destination.server, m.destination.instancePath())
	}
	return err
}

func (m *migration) start(ctx context.Context, f diskState) error {
	if err := m.destination.removeMarker(fileStop); err != nil {
		return err
	}
	m.report(relay.Progress{Step: stepStart})
	err := m.driver.agents.ensureStarted(ctx, m.destination, f.stoppedAtSource)
	switch {
	case err == nil || errors.Is(err, relay.ErrSuperseded) || ctx.Err() != nil:
		return err
	case !f.stoppedAtSource: // the migration cannot be undone, and the agent continues to restart the command
		slog.Default().Warn("moved instance did not start", "instance_id", m.Instance, "server",
			m.destination.server, "error", err)
		return nil
	}
	return fmt.Errorf(
		"the instance did not start on server %s: %w; see the end of its output.log",
		m.destination.server, err,
	)
}

// cleanSource removes or keeps the source, and cleans the work directories. After its first rename, the migration
// cannot be undone.
func (m *migration) cleanSource(_ context.Context, f diskState) error {
	if f.stoppedAtSource {
		if err := m.removeSource(); err != nil {
			return err
		}
	}
	m.driver.stepHook("given up")
	for _, name := range []string{fileSwitched, fileVerify, fileJob, fileStop} {
		if err := m.source.removeMarker(name); errors.Is(err, relay.ErrSuperseded) {
			return err
		}
	}
	for _, p := range []instanceDir{m.source, m.destination} {
		if err := p.discardMatching(isLeftover); errors.Is(err, relay.ErrSuperseded) {
			return err
		}
	}
	return nil
}

func (m *migration) removeSource() error {
	keep, err := m.sourceHasExtraVolumes()
	if err != nil {
		return err
	}
	mount, err := mountBelow(m.source.workFile(dirInstance)) // mounted after the stop
	if err != nil {
		return m.source.supersededError(err)
	}
	if !keep && mount == "" {
		written, err := m.findWrittenSource()
		if err != nil {
			return m.source.supersededError(err)
		}
		if written == "" {
			return m.source.removeTree(m.source.workFile(dirInstance))
		}
		slog.Default().Warn("another process has written to the source after it was copied, so it is kept; stop the process "+
			"and merge its changes", "instance_id", m.Instance, "server", m.source.server, "path", written)
	}
	dir := filepath.Join(m.source.path, dirKept, m.Instance)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := syncDir(filepath.Dir(dir)); err != nil {
		return err
	}
	return m.source.rename(m.source.workFile(dirInstance),
		filepath.Join(dir, fmt.Sprintf("%s-%d", m.JobID, m.Lease)))
}

// sourceHasExtraVolumes reports whether the source has volumes that were not copied. An entry named volumes that is not
// a directory is always copied.
func (m *migration) sourceHasExtraVolumes() (bool, error) {
	if m.CopyVolumes {
		return false, nil
	}
	path := filepath.Join(m.source.workFile(dirInstance), dirVolumes)
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, m.source.checkLease()
	}
	if err != nil || !info.IsDir() {
		return false, err
	}
	volumes, err := os.ReadDir(path)
	return len(volumes) > 0, m.source.supersededError(err)
}

// describeError adds the server and advice for the operator to an error about disk space or a missing directory.
func (m *migration) describeError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		if p := (*fs.PathError)(nil); errors.As(err, &p) && strings.HasPrefix(p.Path, m.source.path+"/") {
			return fmt.Errorf("server %s has no disk space for the files of a migration; free some space: %w", m.source.server, err)
		}
		return fmt.Errorf("server %s has not enough disk space for the instance; free some space or choose another "+
			"server: %w", m.destination.server, err)
	}
	if e := m.destination.checkLease(); e != nil {
		return fmt.Errorf("the directory of server %s has disappeared; check that it is mounted: %w",
			m.destination.server, e)
	}
	return err
}
