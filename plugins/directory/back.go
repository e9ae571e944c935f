package directory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hubrelay/hubrelay/relay"
)

// back brings the instance back to the source and returns cause, or completes the migration and returns nil where the
// destination is what counts by now.
func (v *move) back(ctx context.Context, cause error) error {
	switch {
	case errors.Is(cause, relay.ErrSuperseded), errors.Is(v.src.check(), relay.ErrSuperseded), errors.Is(v.dst.check(), relay.ErrSuperseded):
		return relay.ErrSuperseded
	case ctx.Err() != nil:
		return ctx.Err()
	case relay.IsUnsettled(cause):
		return cause
	}
	v.driver.between("back")
	completed, err := v.restore(ctx)
	switch {
	case errors.Is(err, relay.ErrSuperseded):
		return relay.ErrSuperseded
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return relay.Unsettled(fmt.Errorf("%w; and the instance is not back on server %s: %w", cause, v.src.server, err))
	case completed:
		return nil
	}
	return cause
}

func (v *move) restore(ctx context.Context) (completed bool, err error) {
	f, err := v.look()
	if err != nil {
		return false, err
	}
	switch {
	case f.srcHome && f.srcInstance:
		return false, fmt.Errorf("%s and %s are both there; remove the one that is wrong", v.src.home(), v.src.in(dirInstance))
	case f.srcHome: // it was never taken away, or is back
		if err := v.sweepDestination(f); err != nil {
			return false, err
		}
		return false, v.restart(ctx)
	case !f.srcInstance && f.moved():
		return true, v.finish(ctx, f)
	case !f.srcInstance:
		return false, fmt.Errorf("it is in none of its places, %s, %s and %s", v.src.home(), v.src.in(dirInstance), v.dst.home())
	}
	if err := v.sameJob(f); err != nil {
		return false, err
	}
	if f.switched && f.lost {
		return false, fmt.Errorf("it may run on server %s, whose folder has vanished", v.dst.server)
	}
	if f.moved() {
		state, err := readState(v.dst.home())
		if err != nil {
			return false, err
		}
		if state.Steady { // it has run there: what it wrote since is not at the source
			return true, v.finish(ctx, f)
		}
		if err := v.driver.keepers.stop(ctx, v.dst); err != nil {
			return false, err
		}
		v.driver.between("stopped again")
		v.keepOutput()
		if err := v.dst.discard(v.dst.home()); err != nil {
			return false, err
		}
	}
	v.driver.between("taken back")
	if err := v.sweepDestination(f); err != nil {
		return false, err
	}
	if err := v.src.rename(v.src.in(dirInstance), v.src.home()); err != nil {
		return false, err
	}
	v.driver.between("restored")
	return false, v.restart(ctx)
}

// keepOutput puts the end of what the command printed at the destination behind what it printed at the source: it is the
// only one to know why it did not run.
func (v *move) keepOutput() {
	flags := unix.O_NOFOLLOW | unix.O_NONBLOCK
	from, err := os.OpenFile(filepath.Join(v.dst.home(), fileOutput), os.O_RDONLY|flags, 0)
	if err != nil {
		return
	}
	defer func() { _ = from.Close() }()
	to, err := os.OpenFile(filepath.Join(v.src.in(dirInstance), fileOutput), os.O_CREATE|os.O_APPEND|os.O_WRONLY|flags, 0o640)
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
	// It moved along, so that it begins with what is here already.
	if _, err := from.Seek(max(min(before.Size(), printed.Size()), printed.Size()-keptOutput), io.SeekStart); err != nil {
		return
	}
	_, _ = fmt.Fprintf(to, "hubrelay: job %s did not succeed; the end of what was printed on server %s:\n", v.JobID, v.dst.server)
	_, _ = io.Copy(to, io.LimitReader(from, keptOutput))
}

// keptOutput is how much that is, in bytes.
const keptOutput = 8 << 10

// sweepDestination leaves nothing on the destination, where it can be reached and nothing else went wrong with it.
func (v *move) sweepDestination(f found) error {
	if f.lost {
		return nil
	}
	if err := v.dst.sweep(leftover); errors.Is(err, relay.ErrSuperseded) {
		return err
	}
	return nil
}

// restart lets the instance run at the source again.
func (v *move) restart(ctx context.Context) error {
	for _, name := range []string{fileSwitched, fileJob} {
		if err := v.src.unmark(name); err != nil {
			return err
		}
	}
	if err := v.src.sweep(leftover); errors.Is(err, relay.ErrSuperseded) { // such as a note that was never whole
		return err
	}
	asked, err := exists(v.src.in(fileStop))
	if err != nil {
		return err
	}
	if asked { // a keeper may have seen it or not
		if err := v.driver.keepers.stop(ctx, v.src); err != nil {
			return err
		}
		if err := v.src.unmark(fileStop); err != nil {
			return err
		}
	}
	if err := v.driver.keepers.start(ctx, v.src, false); err != nil {
		return fmt.Errorf("start it in %s: %w", filepath.Clean(v.src.home()), err)
	}
	return nil
}

// finish completes a migration that cannot be undone any more.
func (v *move) finish(ctx context.Context, f found) error {
	if f.srcInstance {
		if err := v.giveUpSource(); err != nil {
			return err
		}
		f.srcInstance = false
	}
	if err := v.start(ctx, f); err != nil {
		return err
	}
	if err := v.clean(ctx, f); err != nil {
		return err
	}
	for _, step := range []string{stepStop, stepCopy, stepVerify, stepSwitch, stepStart, stepClean} {
		v.completed(step)
	}
	return nil
}
