package directory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hubrelay/hubrelay/relay"
)

// rollBack moves the instance back to the source and returns cause. If the instance already runs on the destination, it
// completes the migration and returns nil.
func (m *migration) rollBack(ctx context.Context, cause error) error {
	switch {
	case errors.Is(cause, relay.ErrSuperseded), errors.Is(m.source.checkLease(), relay.ErrSuperseded),
		errors.Is(m.destination.checkLease(), relay.ErrSuperseded):
		return relay.ErrSuperseded
	case ctx.Err() != nil:
		return ctx.Err()
	case relay.IsIndeterminate(cause):
		return cause
	}
	m.driver.stepHook("back")
	completed, err := m.restoreSource(ctx)
	switch {
	case errors.Is(err, errDisappeared):
		return err
	case errors.Is(err, relay.ErrSuperseded):
		return relay.ErrSuperseded
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return relay.Indeterminate(fmt.Errorf("%w; restoring the instance on server %s failed: %w", cause,
			m.source.server, err))
	case completed:
		return nil
	}
	return cause
}

// errDisappeared reports that the source has lost the instance, for example because the command of the instance has removed its
// own directory. If this migration has not moved the instance, there is nothing to restore.
var errDisappeared = errors.New("the instance has disappeared")

func (m *migration) restoreSource(ctx context.Context) (completed bool, err error) {
	f, err := m.inspect()
	if err != nil {
		return false, err
	}
	switch {
	case f.atSource && f.stoppedAtSource:
		return false, fmt.Errorf("both %s and %s exist; remove the wrong one", m.source.instancePath(),
			m.source.workFile(dirInstance))
	case f.atSource: // it was never renamed, or is already restored
		if err := m.sweepDestination(f); err != nil {
			return false, err
		}
		return false, m.restartSource(ctx)
	case !f.stoppedAtSource && f.isMoved():
		return true, m.complete(ctx, f)
	case !f.stoppedAtSource:
		err := fmt.Errorf("it was not found at %s, %s or %s", m.source.instancePath(), m.source.workFile(dirInstance),
			m.destination.instancePath())
		if !f.switched && !f.ready && !f.atDestination && !f.destinationUnreachable {
			err = fmt.Errorf("%w: %w; if it is on another server, correct the inventory", errDisappeared, err)
		}
		return false, err
	}
	if err := m.checkJob(f); err != nil {
		return false, err
	}
	if f.switched && f.destinationUnreachable {
		return false, fmt.Errorf("it may be running on server %s, whose directory has disappeared",
			m.destination.server)
	}
	if f.isMoved() {
		state, err := readState(m.destination.instancePath())
		if err != nil {
			return false, err
		}
		if state.Stable { // it has run there, and its new data is not on the source
			return true, m.complete(ctx, f)
		}
		if err := m.driver.agents.stopAgent(ctx, m.destination); err != nil {
			return false, err
		}
		m.driver.stepHook("stopped again")
		m.keepOutput()
		if err := m.destination.removeTree(m.destination.instancePath()); err != nil {
			return false, err
		}
	}
	m.driver.stepHook("copy removed")
	if err := m.sweepDestination(f); err != nil {
		return false, err
	}
	if err := m.source.rename(m.source.workFile(dirInstance), m.source.instancePath()); err != nil {
		return false, err
	}
	m.driver.stepHook("restored")
	return false, m.restartSource(ctx)
}

// keepOutput appends the end of the command's output on the destination to the output on the source, because it may
// contain the reason why the command failed.
func (m *migration) keepOutput() {
	flags := unix.O_NOFOLLOW | unix.O_NONBLOCK
	from, err := os.OpenFile(filepath.Join(m.destination.instancePath(), fileOutput), os.O_RDONLY|flags, 0)
	if err != nil {
		return
	}
	defer func() { _ = from.Close() }()
	to, err := os.OpenFile(filepath.Join(m.source.workFile(dirInstance), fileOutput),
		os.O_CREATE|os.O_APPEND|os.O_WRONLY|flags, 0o640)
	if err != nil {
		return
	}
	defer func() { _ = to.Close() }()
	printed, err := from.Stat()
	if err != nil || !printed.Mode().IsRegular() {
		return
	}
	before, err := to.Stat()
	if err != nil || !before.Mode().IsRegular() {
		return
	}
	// The migration also copied the output, so it starts with the output of the source.
	if _, err := from.Seek(max(min(before.Size(), printed.Size()), printed.Size()-keptOutput),
		io.SeekStart); err != nil {
		return
	}
	_, _ = fmt.Fprintf(to, "hubrelay: job %s failed; the end of the output on server %s:\n", m.JobID,
		m.destination.server)
	_, _ = io.Copy(to, io.LimitReader(from, keptOutput))
}

// keptOutput is the maximum number of appended bytes.
const keptOutput = 8 << 10

// sweepDestination removes the leftovers of the migration from the destination, if it is reachable.
func (m *migration) sweepDestination(f diskState) error {
	if f.destinationUnreachable {
		return nil
	}
	// The marker would stop an instance that an operator moves there.
	if err := m.destination.removeMarker(fileStop); errors.Is(err, relay.ErrSuperseded) {
		return err
	}
	if err := m.destination.discardMatching(isLeftover); errors.Is(err, relay.ErrSuperseded) {
		return err
	}
	return nil
}

// restartSource cleans the work directory of the source and starts the instance there again.
func (m *migration) restartSource(ctx context.Context) error {
	for _, name := range []string{fileSwitched, fileVerify, fileJob} {
		if err := m.source.removeMarker(name); err != nil {
			return err
		}
	}
	if err := m.source.discardMatching(isLeftover); errors.Is(err, relay.ErrSuperseded) { // such as an incomplete note
		return err
	}
	stopRequested, err := exists(m.source.workFile(fileStop))
	if err != nil {
		return err
	}
	if info, err := os.Lstat(m.source.instancePath()); err == nil && !info.IsDir() {
		return nil // such as a link, so this job has not stopped the instance
	}
	startError := func(err error) error {
		return fmt.Errorf("start the instance in %s: %w", filepath.Clean(m.source.instancePath()), err)
	}
	var unreadable *fs.PathError
	switch _, err := readInstance(m.source.instancePath()); {
	case err == nil:
	case stopRequested, errors.As(err, &unreadable):
		return startError(err)
	default:
		return nil // instance.json is invalid, so this job has not stopped the instance
	}
	if stopRequested { // the agent may or may not have read it
		if err := m.driver.agents.stopAgent(ctx, m.source); err != nil {
			return err
		}
		if err := m.source.removeMarker(fileStop); err != nil {
			return err
		}
	}
	if err := m.driver.agents.ensureStarted(ctx, m.source, false); err != nil {
		return startError(err)
	}
	return nil
}

// complete finishes a migration that cannot be undone.
func (m *migration) complete(ctx context.Context, f diskState) error {
	if f.stoppedAtSource {
		if err := m.removeSource(); err != nil {
			return err
		}
		f.stoppedAtSource = false
	}
	if err := m.start(ctx, f); err != nil {
		return err
	}
	if err := m.cleanSource(ctx, f); err != nil {
		return err
	}
	for _, step := range []string{stepStop, stepCopy, stepVerify, stepSwitch, stepStart, stepClean} {
		m.reportStep(step)
	}
	return nil
}
