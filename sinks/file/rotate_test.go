package file

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/sinks/sinktest"
)

// all returns the content of a file and of its renamed files, compressed or not.
func all(t *testing.T, path string) (text string, files int) {
	t.Helper()
	ext := filepath.Ext(path)
	names, err := filepath.Glob(strings.TrimSuffix(path, ext) + "*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		one := read(t, name)
		if strings.HasSuffix(name, ".gz") {
			r, err := gzip.NewReader(strings.NewReader(one))
			if err != nil {
				t.Fatal(err)
			}
			plain, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			one = string(plain)
		}
		text += one
	}
	return text, len(names)
}

// Two sinks, as of two configurations, write to one file that both rotate, and lose nothing.
func TestRotation(t *testing.T) {
	t.Parallel()
	const each = 400
	path := filepath.Join(t.TempDir(), "events.jsonl")
	kind := Kind()
	open := func(c Config) *Sink { return openOf(t, kind, &c) }
	sinks := []*Sink{
		open(Config{Path: path, MaxSize: minMaxSize, Compress: true}), open(Config{
			Path: path, MaxSize: minMaxSize,
			Compress: true, MaxBackups: 90,
		}),
	}
	var wg sync.WaitGroup
	for n, s := range sinks {
		for half := range 2 {
			wg.Go(func() {
				for i := range each {
					if err := s.Deliver(context.Background(),
						sinktest.Sample(fmt.Sprintf("%d-%d-%d", n, half, i))); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	for _, s := range sinks {
		if err := s.Close(); err != nil { // waits for the compression
			t.Error(err)
		}
	}
	text, files := all(t, path)
	ids := (&remembering{}).idsOf(t, text)
	slices.Sort(ids)
	if n := len(slices.Compact(ids)); n != 4*each || files < 5 {
		t.Errorf("%d of %d lines in %d files", n, 4*each, files)
	}
	if info, err := os.Stat(path); err != nil || info.Size() > minMaxSize || info.Mode() != mode {
		t.Errorf("%+v, %v", info, err)
	}
}

func TestBackupsAreBounded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.jsonl")
	s := openTest(t, &Config{Path: path, MaxSize: minMaxSize, MaxBackups: 2})
	for i := range 1500 {
		deliver(t, s, fmt.Sprint(i))
		if i%150 == 0 {
			// names contain milliseconds, and timberjack merges files with the same name
			time.Sleep(2 * time.Millisecond)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, files := all(t, path); files > 3 {
		t.Errorf("%d files", files)
	}
}

// An outside logrotate renames the file, or removes it.
func TestRenamedByOthers(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.jsonl")
	s := openTest(t, &Config{Path: path})
	deliver(t, s, "a")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	deliver(t, s, "b")
	if !strings.Contains(read(t, path+".1"), `"id":"a"`) || !strings.Contains(read(t, path), `"id":"b"`) {
		t.Errorf("%q, then %q", read(t, path+".1"), read(t, path))
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	deliver(t, s, "c")
	if err := os.Truncate(path, 0); err != nil { // copytruncate
		t.Fatal(err)
	}
	deliver(t, s, "d")
	if got := (&remembering{}).idsOf(t, read(t, path)); !slices.Equal(got, []string{"d"}) {
		t.Errorf("%v", got)
	}
}

// Another process has the file for a moment.
func TestWaitsForTheLock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.jsonl")
	release := hold(t, path)
	s := openTest(t, &Config{Path: path})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	refused(t, s.Deliver(ctx, sinktest.Sample("a")), "is locked by another process")
	release()
	deliver(t, s, "b")
	if got := (&remembering{}).idsOf(t, read(t, path)); !slices.Equal(got, []string{"b"}) {
		t.Errorf("%v", got)
	}
}

// inLittleRoom delivers until a line does not fit, then frees space and delivers one more.
func inLittleRoom(path string) {
	limit := func(n uint64) {
		var now syscall.Rlimit
		if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &now); err != nil {
			panic(err)
		}
		now.Cur = n
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &now); err != nil {
			panic(err)
		}
	}
	s, err := Kind().Open(sinkSettings, &Config{Path: path})
	if err != nil {
		panic(err)
	}
	limit(900) // in the middle of the fourth line
	for i := range 6 {
		if i == 5 {
			limit(1 << 20)
		}
		err := s.Deliver(context.Background(), sinktest.Sample(fmt.Sprint(i)))
		outcome, _ := relay.Classify(err)
		fmt.Println(outcome, err)
	}
}

// A line that was cut by a full disk is removed. A limit on the size of files acts as the full disk: the kernel writes
// what fits and rejects the rest.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.jsonl")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "HUBRELAY_TEST=cramped", "HUBRELAY_PATH="+path, "GORACE=atexit_sleep_ms=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	full := "retry " + path +
		" has the maximum size of a file: raise the limit (ulimit -f), or choose a smaller max_size\n"
	want := strings.Repeat("delivered <nil>\n", 3) + strings.Repeat(full, 2) + "delivered <nil>\n"
	if string(out) != want {
		t.Errorf("got\n%swant\n%s", out, want)
	}
	if got := (&remembering{}).idsOf(t, read(t, path)); !slices.Equal(got, []string{"0", "1", "2", "5"}) {
		t.Errorf("%v", got)
	}
}
