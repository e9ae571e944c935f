package directory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// traits returns the properties that must be equal on the source and the destination.
func traits(t *testing.T, root string) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		line := fmt.Sprintf("%q %o %d:%d links %d", rel, st.Mode, st.Uid, st.Gid, st.Nlink)
		if rel != "." { // renames change the time of the top directory
			line += fmt.Sprint(" ", st.Mtim.Nano())
		}
		if !d.IsDir() {
			line += fmt.Sprint(" ", st.Size)
		}
		if d.Type() == fs.ModeSymlink {
			target, _ := os.Readlink(path)
			line += " -> " + target
		}
		value := make([]byte, 100)
		if n, err := unix.Lgetxattr(path, "user.color", value); err == nil {
			line += " " + string(value[:n])
		}
		if n, err := unix.Lgetxattr(path, "security.capability", value); err == nil {
			line += fmt.Sprintf(" %x", value[:n])
		}
		lines = append(lines, line)
		return nil
	})
	must(t, err)
	slices.Sort(lines)
	return lines
}

func TestTreeCopy_KeepsMetadata(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	in := func(name string) string { return filepath.Join(r.a, "i/volumes/data", name) }
	secret := filepath.Join(filepath.Dir(r.a), "outside")
	must(t,
		os.WriteFile(secret, []byte("secret"), 0o600),
		os.Symlink(secret, in("absolute")), os.Symlink("../../nowhere", in("dangling")), os.Symlink("..", in("folder")),
		os.Link(in("file"), in("deep/link")), os.Link(in("file"), in("again")),
		os.WriteFile(in("empty"), nil, 0o400), os.WriteFile(in("no\xffutf8 \"\n name"), []byte("x"), 0o777),
		os.Chmod(in("no\xffutf8 \"\n name"), 0o6751), os.Chmod(in("deep/empty"), 0o1711), os.Mkdir(in("closed"), 0o700),
		os.WriteFile(in("closed/file"), []byte("x"), 0), os.Chmod(in("closed"), 0o500),
		unix.Mkfifo(in("fifo"), 0o640),
		os.Chtimes(in("deep"), time.Time{}, time.Unix(1e9, 123456789)),
		os.WriteFile(in("blocks"), []byte(strings.Repeat("0123456789abcdef", 5*blockSize/16+1)), 0o644),
		os.WriteFile(in("exact"), []byte(strings.Repeat("x", blockSize)), 0o644),
	)
	t.Cleanup(func() {
		for _, path := range []string{r.a, r.b} {
			_ = os.Chmod(filepath.Join(path, "i/volumes/data/closed"), 0o700)
		}
	})
	if os.Geteuid() == 0 {
		must(t, os.Lchown(in("empty"), 1234, 2345), os.Lchown(in("dangling"), 1234, 1), os.Lchown(in("deep"), 77, 78))
		// cap_net_bind_service
		capability := []byte("\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00")
		_ = unix.Setxattr(in("empty"), "security.capability", capability, 0) // if the system supports it
	}
	_ = unix.Setxattr(in("file"), "user.color", []byte("green"), 0) // if the system supports it
	_ = unix.Setxattr(in("deep"), "user.color", []byte("blue"), 0)
	sparse, err := os.Create(in("sparse"))
	must(t, err)
	_, err = sparse.WriteAt([]byte("in the middle"), 10*blockSize+12345)
	must(t, err, sparse.Truncate(64*blockSize), sparse.Close())
	l, err := net.Listen("unix", in("socket"))
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })

	want := slices.DeleteFunc(traits(t, filepath.Join(r.a, "i")),
		func(line string) bool { return strings.Contains(line, "data/socket") })
	data, err := os.ReadFile(in("blocks"))
	must(t, err)
	must(t, r.d.Migrate(t.Context(), r.m, r.report))
	got := traits(t, filepath.Join(r.b, "i"))
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Fatalf("got\n%s\nwant\n%s", strings.Join(got[min(i, len(got)):], "\n"),
				strings.Join(want[min(i, len(want)):], "\n"))
		}
	}
	moved := filepath.Join(r.b, "i/volumes/data")
	if copied, err := os.ReadFile(filepath.Join(moved, "blocks")); err != nil || string(copied) != string(data) {
		t.Error("the copy of blocks differs from the source", err)
	}
	var st unix.Stat_t
	must(t, unix.Stat(filepath.Join(moved, "sparse"), &st))
	if st.Blocks*512 > 2*blockSize {
		t.Errorf("the copy has no hole: %d bytes on the disk", st.Blocks*512)
	}
	counted := 0
	for _, p := range r.reports {
		if p.Total > 0 && p.Bytes == p.Total {
			counted++
		}
	}
	if counted < 2 {
		t.Errorf("copy and verification did not both report all bytes: %+v", r.reports)
	}
	middle := make([]byte, 13)
	f, err := os.Open(filepath.Join(moved, "sparse"))
	must(t, err)
	_, err = f.ReadAt(middle, 10*blockSize+12345)
	if must(t, err, f.Close()); string(middle) != "in the middle" {
		t.Errorf("got %q in the middle of sparse", middle)
	}
}

func TestTreeCopy_RejectsDevice(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if err := unix.Mknod(filepath.Join(r.a, "i/volumes/data/null"), unix.S_IFCHR|0o600, 1<<8|3); err != nil {
		t.Skip("mknod: ", err)
	}
	err := r.d.Migrate(t.Context(), r.m, r.report)
	if err == nil || !strings.Contains(err.Error(), "volumes/data/null is a device") {
		t.Error(err)
	}
	r.nothingLeft(r.b)
	if ok, _ := exists(filepath.Join(r.a, "i/volumes/data/null")); !ok {
		t.Error("the source was not restored")
	}
}

func TestTreeCopy_RejectsGrowingFile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	v, err := r.d.newMove(r.m, r.report)
	must(t, err)
	for _, size := range []int{100, pipelineMinSize + 100} {
		r.write("grows", strings.Repeat("x", size))
		src, err := os.Open(filepath.Join(r.a, "grows"))
		must(t, err)
		dst, err := os.Create(filepath.Join(r.b, "grows"))
		must(t, err)
		var st unix.Stat_t
		must(t, unix.Fstat(int(src.Fd()), &st))
		st.Size -= 50
		if _, err := newCopier(&treeCopy{v: v}).copyContents(t.Context(), src, dst, &st); !errors.Is(err, errFileGrew) {
			t.Error(err)
		}
		must(t, src.Close(), dst.Close())
	}
}

// Complete files are not copied again, unless the file has changed or the copy is damaged.
func TestTreeCopy_ReusesCompletedFiles(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 20 {
		r.write(fmt.Sprintf("i/volumes/data/%02d", i), strings.Repeat("x", i+1))
	}
	ctx, cancel := context.WithCancel(t.Context())
	r.d.stepHook = func(point string) {
		if point == "verify" {
			cancel()
		}
	}
	if err := r.d.Migrate(ctx, r.m, r.report); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if ok, _ := exists(filepath.Join(r.a, "i")); ok {
		t.Error("a canceled call must not restore the source")
	}
	r.m.Lease = 2
	stopped := filepath.Join(r.a, dirFence, "i/1/instance/volumes/data")
	must(t, os.WriteFile(filepath.Join(stopped, "03"), []byte("changed"), 0o644))
	copies, err := filepath.Glob(filepath.Join(r.b, dirFence, "i/1/incoming-*/tree/volumes/data/05"))
	must(t, err, os.WriteFile(copies[0], []byte("damage"), 0o644))
	want := listing(t, filepath.Dir(filepath.Dir(stopped)))
	var copied atomic.Int32
	r.d.stepHook = func(point string) {
		if point == "file" {
			copied.Add(1)
		}
	}
	must(t, r.d.Migrate(t.Context(), r.m, r.report))
	if copied.Load() != 2 {
		t.Errorf("got %d files copied again, want 2", copied.Load())
	}
	if got := r.contents(r.b); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	r.nothingLeft(r.a)
	r.workEmpty(r.b)
}

// A process outside of the process group can write to the source after it was compared with the copy. Then the source is kept.
func TestMigrate_KeepsWrittenSource(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(volume string) error{
		"changed file": func(volume string) error { return os.WriteFile(filepath.Join(volume, "file"), []byte("late"), 0o644) },
		"new file":     func(volume string) error { return os.WriteFile(filepath.Join(volume, "new"), []byte("late"), 0o644) },
		"removed file": func(volume string) error { return os.Remove(filepath.Join(volume, "file")) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			want := r.contents(r.a)
			work := filepath.Join(r.a, dirFence, "i/1")
			r.d.stepHook = func(point string) {
				if point == "verified" {
					testkit.WaitFor(t, "the next tick of the clock of the file system", func() bool {
						return laterThan(t, filepath.Join(work, "probe"), filepath.Join(work, fileVerify))
					})
					must(t, os.Remove(filepath.Join(work, "probe")), change(filepath.Join(work, "instance/volumes/data")))
				}
			}
			must(t, r.d.Migrate(t.Context(), r.m, r.report))
			if got := r.contents(r.b); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if kept, err := filepath.Glob(filepath.Join(r.a, dirKept, "i/*/volumes/data")); err != nil || len(kept) != 1 {
				t.Errorf("got kept directories %q, %v; want one", kept, err)
			}
		})
	}
}

// laterThan writes a file, and reports whether its change time is after that of another.
func laterThan(t *testing.T, path, other string) bool {
	t.Helper()
	var st, before unix.Stat_t
	must(t, os.WriteFile(path, nil, 0o644), unix.Lstat(path, &st), unix.Lstat(other, &before))
	return st.Ctim.Nano() > before.Ctim.Nano()
}

// A copy from an earlier stop is useless after the instance has run again.
func TestTreeCopy_DiscardsCopyOfEarlierStop(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	r.d.stepHook = func(point string) {
		if point == "switch" {
			cancel()
		}
	}
	if err := r.d.Migrate(ctx, r.m, r.report); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	must(t, os.Rename(r.b, r.b+"-away"))
	r.d.stepHook = func(string) {}
	r.m.Lease, r.m.Undo = 2, true
	if err := r.d.Migrate(t.Context(), r.m, r.report); err == nil || relay.IsIndeterminate(err) {
		t.Fatal(err)
	}
	must(t, os.Rename(r.b+"-away", r.b))
	r.write("i/volumes/data/file", "CONTENTS")
	want := r.contents(r.a)
	r.m.Lease, r.m.Undo = 3, false
	must(t, r.d.Migrate(t.Context(), r.m, r.report))
	if got := r.contents(r.b); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestManifestRecord_RoundTrip(t *testing.T) {
	t.Parallel()
	want := manifestRecord{
		kind: 'f', fileStamp: fileStamp{ino: 1 << 63, size: 5, mtime: -7, ctime: 8}, sum: 0xdeadbeef,
		path: "a b\xff\"\n",
	}
	got, err := parseRecord(want.encode())
	if err != nil || got != want {
		t.Errorf("got %+v, error %v", got, err)
	}
	path := filepath.Join(t.TempDir(), "manifest")
	must(t, os.WriteFile(path, append(want.encode(), want.encode()[:20]...), 0o600))
	n := 0
	must(t, readManifest(path, func(manifestRecord) error { n++; return nil }))
	if n != 1 {
		t.Errorf("got %d records, want 1 before the truncated one", n)
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte("f 1 2 3 4 00000000000000ff \"path\"\n"))
	f.Fuzz(func(t *testing.T, line []byte) {
		r, err := parseRecord(line)
		if err != nil {
			return
		}
		if again, err := parseRecord(r.encode()); err != nil || again != r {
			t.Errorf("%+v became %+v, %v", r, again, err)
		}
	})
}
