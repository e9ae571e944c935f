package directory

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// fenceFolder holds, at each server, a folder for every instance that was ever migrated from or to it.
	fenceFolder = ".hubrelay"
	// keptFolder holds, at each server, what was left there on purpose.
	keptFolder = ".hubrelay-kept"
	// temporary is the name prefix of unfinished entries. No instance has such a name.
	temporary = ".new-"
)

// Entries of a work directory.
const (
	fileStop     = "stop"     // the agent has to end, and none may start
	fileJob      = "job.json" // see jobNote
	fileSwitched = "switched" // at the source: the instance may be in its place on the destination
	dirInstance  = "instance" // at the source: the stopped instance
	dirIncoming  = "incoming-"
	dirReady     = "ready" // at the destination: the whole instance, verified
	dirTrash     = "trash-"
)

// instanceDir is an instance at a server, as one lease sees it.
//
// Its work folder is named after the lease, and a higher lease claims the place by renaming that folder. So everything
// that names the work folder by its path fails from then on, with ErrNotExist: a rename from or into it is the
// compare-and-set that fences an overtaken process out.
type instanceDir struct {
	server   string
	path     string
	instance string
	lease    int64
}

func (p instanceDir) instancePath() string { return filepath.Join(p.path, p.instance) }
func (p instanceDir) fencePath() string    { return filepath.Join(p.path, fenceFolder, p.instance) }
func (p instanceDir) workPath() string {
	return filepath.Join(p.fencePath(), strconv.FormatInt(p.lease, 10))
}
func (p instanceDir) workFile(name string) string { return filepath.Join(p.workPath(), name) }

// currentLease reads which lease holds the place; 0 if there never was one.
func (p instanceDir) currentLease() (int64, error) {
	for range 10 {
		entries, err := os.ReadDir(p.fencePath())
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
	return 0, fmt.Errorf("%s contains no directory named by a lease; remove it if no migration of %s is running",
		p.fencePath(),
		p.instance)
}

// claim makes the place that of the lease, for as long as no higher one comes.
func (p instanceDir) claim() error {
	for {
		n, err := p.currentLease()
		switch {
		case err != nil:
			return err
		case n > p.lease:
			return relay.ErrSuperseded
		case n == p.lease:
			return nil
		case n == 0:
			err = p.claimFirst()
		default:
			former := p
			former.lease = n
			err = os.Rename(former.workPath(), p.workPath())
		}
		switch {
		case err == nil:
			return syncFolder(p.fencePath())
		case errors.Is(err, fs.ErrNotExist) && n > 0: // claimed by another process
		case errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOTEMPTY):
		default:
			return err
		}
	}
}

// claimFirst puts the folders there in one step.
func (p instanceDir) claimFirst() error {
	parent := filepath.Dir(p.fencePath())
	if err := os.Mkdir(parent, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	made, err := os.MkdirTemp(parent, temporary)
	if err != nil {
		return err
	}
	err = os.Mkdir(filepath.Join(made, strconv.FormatInt(p.lease, 10)), 0o700)
	if err == nil {
		err = os.Rename(made, p.fencePath())
	}
	if err != nil {
		return cmp.Or(err, os.RemoveAll(made))
	}
	return syncFolder(parent)
}

// supersededError returns ErrSuperseded if err was caused by a higher lease.
func (p instanceDir) supersededError(err error) error {
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if n, e := p.currentLease(); e == nil && n > p.lease {
		return relay.ErrSuperseded
	}
	return err
}

// checkLease is called before a step whose paths are outside of the work directory.
func (p instanceDir) checkLease() error {
	_, err := os.Lstat(p.workPath())
	return p.supersededError(err)
}

// rename moves a folder from or into the work folder, and makes that durable.
func (p instanceDir) rename(from, to string) error {
	// Listing the fence first refreshes the cache of a network file system.
	if n, err := p.currentLease(); err == nil && n > p.lease {
		return relay.ErrSuperseded
	}
	if err := os.Rename(from, to); err != nil {
		return p.supersededError(err)
	}
	for _, folder := range []string{filepath.Dir(to), filepath.Dir(from)} {
		if err := syncFolder(folder); err != nil {
			return p.supersededError(err)
		}
	}
	return nil
}

// createMarker makes an empty file in the work folder.
func (p instanceDir) createMarker(name string) error {
	f, err := os.OpenFile(p.workFile(name), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return p.supersededError(err)
	}
	return cmp.Or(f.Close(), p.supersededError(syncFolder(p.workPath())))
}

// removeMarker removes a file from the work folder; it need not be there.
func (p instanceDir) removeMarker(name string) error {
	err := os.Remove(p.workFile(name))
	if errors.Is(err, fs.ErrNotExist) {
		return p.checkLease()
	}
	return err
}

// discardTries bounds how often a folder is removed that another process still fills.
const discardTries = 100

// removeTree removes a directory of any size. It first renames it to a unique name, so an outdated process cannot
// remove data of its successor. What cannot be removed stays in the work directory until the next claim.
func (p instanceDir) removeTree(path string) error {
	trash, err := os.MkdirTemp(p.workPath(), dirTrash)
	if err != nil {
		return p.supersededError(err)
	}
	if err := p.rename(path, filepath.Join(trash, "x")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := p.checkLease(); err != nil {
		return err
	}
	// An overtaken process that still copies into it finds no folder to do so soon.
	for range discardTries {
		if err := os.RemoveAll(trash); !errors.Is(err, syscall.ENOTEMPTY) {
			break
		}
	}
	return nil
}

// discardMatching discards the chosen entries of the work directory.
func (p instanceDir) discardMatching(chosen func(name string) bool) error {
	entries, err := os.ReadDir(p.workPath())
	if err != nil {
		return p.supersededError(err)
	}
	for _, e := range entries {
		if !chosen(e.Name()) {
			continue
		}
		if err := p.removeTree(p.workFile(e.Name())); err != nil {
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

// syncFolder makes what was renamed in a folder survive a power cut.
func syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	err = f.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) { // there is no such thing on this file system
		err = nil
	}
	return cmp.Or(err, f.Close())
}

// replaceFile writes a file in one step: it has its old contents or the new ones, after a power cut too.
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
	return syncFolder(filepath.Dir(path))
}
