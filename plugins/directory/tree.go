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
	// reportEvery is how often progress is told.
	reportEvery = 250 * time.Millisecond
	// filesAhead bounds how many files the walk may be ahead of their copying, each of which may hold two folders open.
	filesAhead = 256
)

// tree copies an instance into a new folder of the destination's work folder.
//
// Every lease copies into folders that it has made itself, so that an overtaken process, which may hold open whatever it
// likes, never writes into what its successor goes on with. What an earlier lease has completed is taken over by renaming
// file by file.
type tree struct {
	v        *move
	from     string // the stopped instance
	root     string // the copy
	list     string // where the manifest is
	volumes  bool
	earlier  []earlierTree
	manifest *manifest
	total    atomic.Int64
	bytes    atomic.Int64
	folders  []folderMeta
	links    []link
	first    map[inode]string
}

type inode struct{ dev, ino uint64 }

// link is one more name of a file.
type link struct{ name, target string }

type folderMeta struct {
	path string
	st   unix.Stat_t
}

// earlierTree is what an earlier lease has copied.
type earlierTree struct {
	root    string
	records map[string]record
}

func newTree(v *move) (*tree, error) {
	t := &tree{v: v, from: v.src.in(dirInstance), volumes: v.CopyVolumes, first: map[inode]string{}}
	entries, err := os.ReadDir(v.dst.work())
	if err != nil {
		return nil, v.dst.overtaken(err)
	}
	for _, e := range entries {
		if !isIncoming(e.Name()) {
			continue
		}
		old, err := openEarlier(v.dst.in(e.Name()))
		if err != nil {
			return nil, err
		}
		t.earlier = append(t.earlier, old)
	}
	folder, err := os.MkdirTemp(v.dst.work(), dirIncoming)
	if err != nil {
		return nil, v.dst.overtaken(err)
	}
	t.root, t.list = filepath.Join(folder, "tree"), filepath.Join(folder, "manifest")
	if err := os.Mkdir(t.root, 0o700); err != nil {
		return nil, v.dst.overtaken(err)
	}
	return t, nil
}

// openEarlier reads what is complete, and removes what is not: it will be copied anew, and needs the room.
func openEarlier(folder string) (earlierTree, error) {
	old := earlierTree{root: filepath.Join(folder, "tree"), records: map[string]record{}}
	err := readManifest(filepath.Join(folder, "manifest"), func(r record) error {
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

// pair is a folder at both ends, open until the last file of it is copied.
type pair struct {
	src, dst *os.File
	users    atomic.Int32
}

func (p *pair) release() {
	if p.users.Add(-1) == 0 {
		_ = p.src.Close()
		_ = p.dst.Close()
	}
}

type file struct {
	in         *pair
	name, path string
}

func (t *tree) copy(ctx context.Context) error {
	var err error
	if t.manifest, err = newManifest(t.list); err != nil {
		return t.v.dst.overtaken(err)
	}
	err = t.reporting(stepCopy, func() error { return t.copyAll(ctx) })
	return cmp.Or(err, t.manifest.Close())
}

// reporting tells about progress while do works.
func (t *tree) reporting(step string, do func() error) error {
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

func (t *tree) copyAll(ctx context.Context) error {
	top, err := openPair(nil, t.from, t.root)
	if err != nil {
		return t.v.src.overtaken(err)
	}
	files := make(chan file, filesAhead)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(files)
		return t.folder(ctx, top, "", files)
	})
	for range max(2, min(4, runtime.GOMAXPROCS(0))) {
		g.Go(func() error {
			c := newCopier(t)
			for f := range files {
				err := ctx.Err()
				if err == nil {
					err = c.file(ctx, f)
				}
				f.in.release()
				if err != nil {
					for f := range files { // none of them stays open
						f.in.release()
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
			return t.v.dst.overtaken(err)
		}
	}
	return t.finishFolders()
}

// openPair opens a folder at both ends, without following a symbolic link.
func openPair(in *pair, src, dst string) (*pair, error) {
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
	p := &pair{src: a, dst: b}
	p.users.Store(1)
	return p, nil
}

func openAt(folder int, name string, flags int, mode uint32) (*os.File, error) {
	for {
		fd, err := unix.Openat(folder, name, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
		if err == nil {
			return os.NewFile(uintptr(fd), name), nil
		}
		if !errors.Is(err, unix.EINTR) {
			return nil, &fs.PathError{Op: "open", Path: name, Err: err}
		}
	}
}

// folder walks one folder of the source, makes what is no file, and hands on what is.
func (t *tree) folder(ctx context.Context, p *pair, path string, files chan<- file) error {
	defer p.release()
	var st unix.Stat_t
	if err := unix.Fstat(int(p.src.Fd()), &st); err != nil {
		return err
	}
	// An empty volume is one of the same name and nothing else.
	empty := !t.volumes && filepath.Dir(path) == dirVolumes
	for !empty {
		names, err := p.src.Readdirnames(1024)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the folder %s: %w", path, err)
		}
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				return err
			}
			if path == "" && strings.HasPrefix(name, ofKeeper) {
				continue
			}
			if err := t.entry(ctx, p, name, filepath.Join(path, name), files); err != nil {
				return err
			}
		}
	}
	t.folders = append(t.folders, folderMeta{path: path, st: st})
	if empty || path == "" {
		return nil // the topmost folder is where keepers work
	}
	return t.manifest.add(record{kind: 'd', stamp: stampOf(&st), path: path})
}

func (t *tree) entry(ctx context.Context, p *pair, name, path string, files chan<- file) error {
	var st unix.Stat_t
	if err := unix.Fstatat(int(p.src.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return changed(path, err)
	}
	switch uint32(st.Mode) & unix.S_IFMT { //nolint:unconvert // it has 16 bits on other systems
	case unix.S_IFDIR:
		if err := unix.Mkdirat(int(p.dst.Fd()), name, 0o700); err != nil {
			return wrote(path, err)
		}
		child, err := openPair(p, name, name)
		if err != nil {
			return changed(path, err)
		}
		return t.folder(ctx, child, path, files)
	case unix.S_IFREG:
		if st.Nlink > 1 {
			id := inode{uint64(st.Dev), st.Ino} //nolint:unconvert // it has 32 bits on other systems
			if target, ok := t.first[id]; ok {
				t.links = append(t.links, link{name: path, target: target})
				return nil
			}
			t.first[id] = path
		}
		t.total.Add(st.Size)
		p.users.Add(1)
		select {
		case files <- file{in: p, name: name, path: path}:
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
		return nil // worth nothing without the process that listens
	}
	return fmt.Errorf("%s is a device, which cannot be moved; remove it, or make it where the instance starts", path)
}

// finishFolders gives folders their attributes, modes and times, the inner ones first: nothing is put into them any more.
func (t *tree) finishFolders() error {
	for _, f := range t.folders {
		path := filepath.Join(t.root, f.path)
		p, err := openPair(nil, filepath.Join(t.from, f.path), path)
		if err != nil {
			return changed(f.path, err)
		}
		err = finish(p.src, p.dst, unix.AT_FDCWD, path, f.path, &f.st)
		p.release()
		if err != nil {
			return err
		}
	}
	t.folders = nil
	return nil
}

// changed says that something is not what it was when it was copied; err may be nil.
func changed(path string, err error) error {
	if err == nil {
		err = errors.New("its size or its time is another now")
	}
	return fmt.Errorf("%s cannot be read, or changed while it was copied although the instance is stopped; end what uses the instance's folder and migrate again: %w", path, err)
}

func wrote(path string, err error) error {
	return fmt.Errorf("write %s on the destination: %w", path, err)
}
