package directory

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// dirFence is a directory on each server. It contains a directory for every instance that was ever migrated from or
	// to the server.
	dirFence = ".hubrelay"
	// dirKept is a directory on each server. It contains the sources that the driver keeps after a migration.
	dirKept = ".hubrelay-kept"
	// tempPrefix is the name prefix of unfinished entries. No instance has a name with this prefix.
	tempPrefix = ".new-"
)

// Entries of a work directory.
const (
	fileStop     = "stop"     // the agent must end, and no other may start
	fileJob      = "job.json" // see jobNote
	fileSwitched = "switched" // on the source: the instance may have been renamed to its path on the destination
	fileVerify   = "verify"   // on the source: created when the last comparison with the copy starts
	dirInstance  = "instance" // on the source: the stopped instance
	dirIncoming  = "incoming-"
	dirReady     = "ready" // on the destination: the complete and verified copy
	dirTrash     = "trash-"
)

// instanceDir is the directory of an instance on a server, with the lease of the process that uses it.
//
// The work directory is named after the lease. A higher lease claims the instance by renaming the work directory. From
// then on, every operation of the lower lease on a path in its work directory fails with ErrNotExist. Therefore a
// rename from or into the work directory is a compare-and-set that fences an outdated process.
type instanceDir struct {
	server   string
	path     string
	instance string
	lease    int64
}

func (i instanceDir) instancePath() string { return filepath.Join(i.path, i.instance) }
func (i instanceDir) fencePath() string    { return filepath.Join(i.path, dirFence, i.instance) }
func (i instanceDir) workPath() string {
	return filepath.Join(i.fencePath(), strconv.FormatInt(i.lease, 10))
}
func (i instanceDir) workFile(name string) string { return filepath.Join(i.workPath(), name) }

// currentLease returns the lease that has claimed the instance, or 0 if there was none yet.
func (i instanceDir) currentLease() (int64, error) {
	for range 10 {
		entries, err := os.ReadDir(i.fencePath())
		if errors.Is(err, fs.ErrNotExist) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		for _, e := range entries {
			if n, err := strconv.ParseInt(e.Name(), 10, 64); err == nil && n > 0 {
				return n, nil
			}
		}
		if len(entries) == 0 {
			return 0, nil
		}
	}
	return 0, fmt.Errorf("%s contains no directory named after a lease; remove it if no migration of %s is running",
		i.fencePath(), i.instance)
}

// claim claims the instance for the lease, until a higher lease claims it.
func (i instanceDir) claim() error {
	for {
		n, err := i.currentLease()
		switch {
		case err != nil:
			return err
		case n > i.lease:
			return relay.ErrSuperseded
		case n == i.lease:
			return nil
		case n == 0:
			err = i.claimFirst()
		default:
			former := i
			former.lease = n
			err = os.Rename(former.workPath(), i.workPath())
		}
		switch {
		case err == nil:
			return syncDir(i.fencePath())
		case errors.Is(err, fs.ErrNotExist) && n > 0: // claimed by another process
		case errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOTEMPTY):
		default:
			return err
		}
	}
}

// claimFirst creates the fence directory and the work directory in one atomic step.
func (i instanceDir) claimFirst() error {
	parent := filepath.Dir(i.fencePath())
	if err := os.Mkdir(parent, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	temp, err := os.MkdirTemp(parent, tempPrefix)
	if err != nil {
		return err
	}
	err = os.Mkdir(filepath.Join(temp, strconv.FormatInt(i.lease, 10)), 0o700)
	if err == nil {
		err = os.Rename(temp, i.fencePath())
	}
	if err != nil {
		return cmp.Or(err, os.RemoveAll(temp))
	}
	return syncDir(parent)
}

// supersededError returns ErrSuperseded if a higher lease caused err, and err otherwise.
func (i instanceDir) supersededError(err error) error {
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if n, e := i.currentLease(); e == nil && n > i.lease {
		return relay.ErrSuperseded
	}
	return err
}

// checkLease returns ErrSuperseded if a higher lease has claimed the instance. It is called before a step whose paths
// are outside of the work directory.
func (i instanceDir) checkLease() error {
	_, err := os.Lstat(i.workPath())
	return i.supersededError(err)
}

// rename moves a directory from or into the work directory, and syncs both parent directories.
func (i instanceDir) rename(from, to string) error {
	// Listing the fence first refreshes the cache of a network file system.
	if n, err := i.currentLease(); err == nil && n > i.lease {
		return relay.ErrSuperseded
	}
	if err := os.Rename(from, to); err != nil {
		return i.supersededError(err)
	}
	for _, dir := range []string{filepath.Dir(to), filepath.Dir(from)} {
		if err := syncDir(dir); err != nil {
			return i.supersededError(err)
		}
	}
	return nil
}

// createMarker creates an empty file in the work directory.
func (i instanceDir) createMarker(name string) error {
	f, err := os.OpenFile(i.workFile(name), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return i.supersededError(err)
	}
	return cmp.Or(f.Close(), i.supersededError(syncDir(i.workPath())))
}

// removeMarker removes a file from the work directory if it exists.
func (i instanceDir) removeMarker(name string) error {
	err := os.Remove(i.workFile(name))
	if errors.Is(err, fs.ErrNotExist) {
		return i.checkLease()
	}
	return err
}

// maxRemoveAttempts is the maximum number of attempts to remove a directory while another process creates files in it.
const maxRemoveAttempts = 100

// removeTree removes a directory of any size. It first renames it to a unique name, so an outdated process cannot
// remove data of its successor. Files that cannot be removed stay in the work directory until the next migration, and are logged.
func (i instanceDir) removeTree(path string) error {
	trash, err := os.MkdirTemp(i.workPath(), dirTrash)
	if err != nil {
		return i.supersededError(err)
	}
	if err := i.rename(path, filepath.Join(trash, "x")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := i.checkLease(); err != nil {
		return err
	}
	i.emptyTrash(trash)
	return nil
}

// emptyTrash removes a directory that has a unique name.
func (i instanceDir) emptyTrash(trash string) {
	err := os.RemoveAll(trash)
	if errors.Is(err, fs.ErrPermission) {
		makeWritable(trash)
		err = os.RemoveAll(trash)
	}
	// An outdated process may still copy into the directory. It soon fails, because its directories are gone.
	for n := 1; n < maxRemoveAttempts && errors.Is(err, syscall.ENOTEMPTY); n++ {
		err = os.RemoveAll(trash)
	}
	if err != nil {
		slog.Default().Warn("files of a moved instance cannot be removed, remove them", "instance_id", i.instance,
			"server", i.server, "path", trash, "error", err)
	}
}

// makeWritable makes all directories below a path writable, as far as possible. Only root may remove files from others.
func makeWritable(path string) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return
	}
	defer func() { _ = root.Close() }()
	_ = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return fs.SkipDir
		}
		if d.IsDir() {
			_ = root.Chmod(name, 0o700) // follows no link out of the root
		}
		return nil
	})
}

// discardMatching removes the entries of the work directory whose names match.
func (i instanceDir) discardMatching(matches func(name string) bool) error {
	entries, err := os.ReadDir(i.workPath())
	if err != nil {
		return i.supersededError(err)
	}
	for _, e := range entries {
		if !matches(e.Name()) {
			continue
		}
		if strings.HasPrefix(e.Name(), dirTrash) {
			i.emptyTrash(i.workFile(e.Name()))
			continue
		}
		if err := i.removeTree(i.workFile(e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// exists reports whether path exists. A dangling symbolic link exists.
func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// syncDir flushes the entries of a directory to the disk, so renames survive a power failure.
func syncDir(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	err = f.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) { // not supported by the file system
		err = nil
	}
	return cmp.Or(err, f.Close())
}

// replaceFile replaces a file atomically. After a power failure it has either its old or its new contents.
func replaceFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = cmp.Or(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return cmp.Or(err, os.Remove(f.Name()))
	}
	return syncDir(filepath.Dir(path))
}
