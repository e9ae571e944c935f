package directory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// reportEvery is the interval of progress reports.
	reportEvery = 250 * time.Millisecond
	// maxQueuedFiles is the maximum number of files that wait to be copied. Each can keep two directories open.
	maxQueuedFiles = 256
)

// treeCopy copies an instance into a new directory of the destination's work directory.
//
// Each lease copies into directories that it created itself, so an outdated process with open files never writes into
// the directories of its successor. A lease adopts the complete files of an earlier lease by renaming them.
type treeCopy struct {
	v             *migration
	source        string // the stopped instance
	root          string // the copy
	manifestPath  string
	volumes       bool
	earlierCopies []earlierTree
	manifest      *manifest
	total         atomic.Int64
	bytes         atomic.Int64
	dirs          []dirMeta
	links         []hardLink
	firstLinks    map[inode]string
}

type inode struct{ dev, ino uint64 }

// hardLink is an additional name of a file.
type hardLink struct{ name, target string }

type dirMeta struct {
	path string
	st   unix.Stat_t
}

// earlierTree is the copy of an earlier lease.
type earlierTree struct {
	root    string
	records map[string]manifestRecord
}

func newTree(v *migration) (*treeCopy, error) {
	t := &treeCopy{v: v, source: v.source.workFile(dirInstance), volumes: v.CopyVolumes, firstLinks: map[inode]string{}}
	entries, err := os.ReadDir(v.destination.workPath())
	if err != nil {
		return nil, v.destination.supersededError(err)
	}
	for _, e := range entries {
		if !isIncoming(e.Name()) {
			continue
		}
		old, err := openEarlier(v.destination.workFile(e.Name()))
		if err != nil {
			return nil, err
		}
		t.earlierCopies = append(t.earlierCopies, old)
	}
	dir, err := os.MkdirTemp(v.destination.workPath(), dirIncoming)
	if err != nil {
		return nil, v.destination.supersededError(err)
	}
	t.root, t.manifestPath = filepath.Join(dir, "tree"), filepath.Join(dir, "manifest")
	if err := os.Mkdir(t.root, 0o700); err != nil {
		return nil, v.destination.supersededError(err)
	}
	return t, nil
}

// openEarlier reads the list of complete files of an earlier copy, and removes its incomplete files to free their
// space.
func openEarlier(dir string) (earlierTree, error) {
	old := earlierTree{root: filepath.Join(dir, "tree"), records: map[string]manifestRecord{}}
	err := readManifest(filepath.Join(dir, "manifest"), func(r manifestRecord) error {
		if r.kind == 'f' {
			old.records[r.path] = r
		}
		return nil
	})
	if err != nil {
		return old, err
	}
	err = filepath.WalkDir(old.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(old.root, path)
		if err != nil {
			return err
		}
		if _, ok := old.records[rel]; ok {
			return nil
		}
		return os.Remove(path)
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return old, err
}

// dirPair is a directory that is open on the source and the destination until its last file is copied.
type dirPair struct {
	src, dst *os.File
	users    atomic.Int32
}

func (p *dirPair) release() {
	if p.users.Add(-1) == 0 {
		_ = p.src.Close()
		_ = p.dst.Close()
	}
}

type fileTask struct {
	dir        *dirPair
	name, path string
}

func (t *treeCopy) copy(ctx context.Context) error {
	var err error
	if t.manifest, err = newManifest(t.manifestPath); err != nil {
		return t.v.destination.supersededError(err)
	}
	err = t.withProgress(stepCopy, func() error { return t.copyAll(ctx) })
	return cmp.Or(err, t.manifest.Close())
}

// withProgress reports progress while do is running.
func (t *treeCopy) withProgress(step string, do func() error) error {
	t.bytes.Store(0)
	var wg sync.WaitGroup
	end := make(chan struct{})
	wg.Go(func() {
		tick := time.NewTicker(reportEvery)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
				t.v.report(relay.Progress{Step: step, Bytes: t.bytes.Load(), Total: t.total.Load()})
			}
		}
	})
	err := do()
	close(end)
	wg.Wait()
	if err == nil {
		t.v.report(relay.Progress{Step: step, Bytes: t.bytes.Load(), Total: t.total.Load()})
	}
	return err
}

func (t *treeCopy) copyAll(ctx context.Context) error {
	top, err := openPair(nil, t.source, t.root)
	if err != nil {
		return t.v.source.supersededError(err)
	}
	files := make(chan fileTask, maxQueuedFiles)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(files)
		return t.copyDir(ctx, top, "", files)
	})
	for range max(2, min(4, runtime.GOMAXPROCS(0))) {
		g.Go(func() error {
			c := newCopier(t)
			for f := range files {
				err := ctx.Err()
				if err == nil {
					err = c.copyFile(ctx, f)
				}
				f.dir.release()
				if err != nil {
					for f := range files { // close their directories
						f.dir.release()
					}
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for _, l := range t.links {
		if err := os.Link(filepath.Join(t.root, l.target), filepath.Join(t.root, l.name)); err != nil {
			return t.v.destination.supersededError(err)
		}
	}
	return t.finishDirs()
}

// openPair opens a directory on the source and the destination, without following a symbolic link.
func openPair(in *dirPair, src, dst string) (*dirPair, error) {
	from, to := unix.AT_FDCWD, unix.AT_FDCWD
	if in != nil {
		from, to = int(in.src.Fd()), int(in.dst.Fd())
	}
	a, err := openAt(from, src, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	b, err := openAt(to, dst, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, cmp.Or(err, a.Close())
	}
	p := &dirPair{src: a, dst: b}
	p.users.Store(1)
	return p, nil
}

func openAt(dirFD int, name string, flags int, mode uint32) (*os.File, error) {
	for {
		fd, err := unix.Openat(dirFD, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
		if err == nil {
			return os.NewFile(uintptr(fd), name), nil
		}
		if !errors.Is(err, unix.EINTR) {
			return nil, &fs.PathError{Op: "open", Path: name, Err: err}
		}
	}
}

// copyDir walks one directory of the source. It queues files, and creates all other entries itself.
func (t *treeCopy) copyDir(ctx context.Context, p *dirPair, path string, files chan<- fileTask) error {
	defer p.release()
	var st unix.Stat_t
	if err := unix.Fstat(int(p.src.Fd()), &st); err != nil {
		return err
	}
	// Without copy_volumes, create the volume without its contents.
	empty := !t.volumes && filepath.Dir(path) == dirVolumes
	for !empty {
		names, err := p.src.Readdirnames(1024)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the directory %s: %w", path, err)
		}
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				return err
			}
			if path == "" && strings.HasPrefix(name, agentFilePrefix) {
				continue
			}
			if err := t.copyEntry(ctx, p, name, filepath.Join(path, name), files); err != nil {
				return err
			}
		}
	}
	t.dirs = append(t.dirs, dirMeta{path: path, st: st})
	if empty || path == "" {
		return nil // agents change the top directory
	}
	return t.manifest.add(manifestRecord{kind: 'd', fileStamp: stampOf(&st), path: path})
}

func (t *treeCopy) copyEntry(ctx context.Context, p *dirPair, name, path string, files chan<- fileTask) error {
	var st unix.Stat_t
	if err := unix.Fstatat(int(p.src.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return sourceChanged(path, err)
	}
	switch uint32(st.Mode) & unix.S_IFMT { //nolint:unconvert // st.Mode has 16 bits on other systems
	case unix.S_IFDIR:
		if err := unix.Mkdirat(int(p.dst.Fd()), name, 0o700); err != nil {
			return writeError(path, err)
		}
		child, err := openPair(p, name, name)
		if err != nil {
			return sourceChanged(path, err)
		}
		return t.copyDir(ctx, child, path, files)
	case unix.S_IFREG:
		if st.Nlink > 1 {
			id := inode{uint64(st.Dev), st.Ino} //nolint:unconvert // st.Dev has 32 bits on other systems
			if target, ok := t.firstLinks[id]; ok {
				t.links = append(t.links, hardLink{name: path, target: target})
				return nil
			}
			t.firstLinks[id] = path
		}
		t.total.Add(st.Size)
		p.users.Add(1)
		select {
		case files <- fileTask{dir: p, name: name, path: path}:
			return nil
		case <-ctx.Done():
			p.release()
			return ctx.Err()
		}
	case unix.S_IFLNK:
		return copySymlink(p, name, path, &st)
	case unix.S_IFIFO:
		return copyFIFO(t, p, name, path, &st)
	case unix.S_IFSOCK:
		return nil // useless without the process that listens on it
	}
	return fmt.Errorf("%s is a device, which cannot be moved; remove it, or let the command create it at startup", path)
}

// finishDirs sets the attributes, modes and times of directories, inner ones first, after all entries were copied.
func (t *treeCopy) finishDirs() error {
	for _, f := range t.dirs {
		path := filepath.Join(t.root, f.path)
		p, err := openPair(nil, filepath.Join(t.source, f.path), path)
		if err != nil {
			return sourceChanged(f.path, err)
		}
		err = copyMetadata(p.src, p.dst, unix.AT_FDCWD, path, f.path, &f.st)
		p.release()
		if err != nil {
			return err
		}
	}
	t.dirs = nil
	return nil
}

// sourceChanged returns the error for a path that changed on the source or cannot be read there. err may be nil.
func sourceChanged(path string, err error) error {
	if err == nil {
		err = errors.New("its size or its time differs")
	}
	return fmt.Errorf(
		"%s is unreadable or changed during the copy, although the instance is stopped; stop all processes that "+
			"use the instance's directory and migrate again: %w", path, err,
	)
}

func writeError(path string, err error) error {
	return fmt.Errorf("write %s on the destination: %w", path, err)
}
