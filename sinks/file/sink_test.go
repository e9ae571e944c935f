package file

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/sinks/sinktest"
)

// The test binary runs itself as the process that has no more room, and as the one whose reader went away.
func TestMain(m *testing.M) {
	switch os.Getenv("HUBRELAY_TEST") {
	case "":
		testkit.RunParallel(8) // the tests wait most of the time
		goleak.VerifyTestMain(m)
	case "cramped":
		inLittleRoom(os.Getenv("HUBRELAY_PATH"))
	case "stdout":
		intoStdout()
	}
}

var sinkSettings = relay.SinkSettings{Name: "test", Log: slog.New(slog.DiscardHandler)}

func openTest(t testing.TB, c *Config) *Sink {
	t.Helper()
	return openOf(t, Kind(), c)
}

func openOf(t testing.TB, k relay.SinkKind, c *Config) *Sink {
	t.Helper()
	s, err := k.Open(sinkSettings, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	sink, ok := s.(*Sink)
	if !ok {
		t.Fatalf("Open returned a %T", s)
	}
	return sink
}

// remembering knows the ids of digests, which their lines do not hold.
type remembering struct {
	relay.Sink
	relay.Previewer

	mu  sync.Mutex
	ids []string
	// batch is the last batch. Each of its notifications is a line.
	batch relay.Delivery
}

func (r *remembering) Deliver(ctx context.Context, d relay.Delivery) error {
	r.mu.Lock()
	if d.Digest != nil {
		r.ids = append(r.ids, d.ID)
	}
	if d.Batch {
		r.batch = d
	}
	r.mu.Unlock()
	return r.Sink.Deliver(ctx, d)
}

// idsOf reads lines and checks that each is complete.
func (r *remembering) idsOf(t *testing.T, text string) []string {
	t.Helper()
	var ids []string
	for line := range strings.Lines(text) {
		var got struct {
			Topic  string
			Object struct{ ID string }
		}
		if err := json.Unmarshal([]byte(line), &got); err != nil || !strings.HasSuffix(line, "\n") {
			t.Errorf("line %q: %v", line, err)
		}
		if got.Topic == relay.TopicDigest {
			r.mu.Lock()
			ids = append(ids, r.ids...)
			r.mu.Unlock()
			continue
		}
		ids = append(ids, got.Object.ID)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var lines []string
	for _, n := range r.batch.Notifications {
		lines = append(lines, n.ID)
	}
	if r.batch.Batch && slices.Equal(lines, ids) {
		return []string{r.batch.ID}
	}
	return ids
}

// A file and a stream have no words.
func cannot() map[sinktest.Behavior]string {
	return map[sinktest.Behavior]string{
		sinktest.Fail:     "what fails has taken nothing; TestNoRoom and TestUnwritable look at it",
		sinktest.Throttle: "a file names no time",
		sinktest.Reject:   "a file does not look at what is written",
		sinktest.Gone:     "a file never says that it wants nothing more",
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	sinktest.Run(t, sinktest.Harness{
		Batches: true, Skip: cannot(),
		Open: func(t *testing.T, b sinktest.Behavior) (relay.Sink, func() []string) {
			path := filepath.Join(t.TempDir(), "events.jsonl")
			switch b {
			case sinktest.Unreachable:
				path = filepath.Join(path, "missing", "events.jsonl")
			case sinktest.Hang:
				hold(t, path)
			}
			s := openTest(t, &Config{Path: path})
			r := &remembering{Sink: s, Previewer: s}
			return r, func() []string { return r.idsOf(t, read(t, path)) }
		},
	})
}

// hold locks the file as another process would.
func hold(t *testing.T, path string) (release func()) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, mode)
	if err == nil {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return func() { _ = f.Close() }
}

func read(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	return string(text)
}

func deliver(t testing.TB, s relay.Sink, id string) {
	t.Helper()
	if err := s.Deliver(context.Background(), sinktest.Sample(id)); err != nil {
		t.Fatal(err)
	}
}

// refused wants a retry whose error says something.
func refused(t *testing.T, err error, words ...string) {
	t.Helper()
	if outcome, _ := relay.Classify(err); outcome != relay.OutcomeRetry {
		t.Fatalf("%s: %v", outcome, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
}

func TestLines(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.jsonl")
	s := openTest(t, &Config{Path: path, Fsync: true})
	d := sinktest.Sample("a")
	d.Notifications[0].Data = []byte("{\"topic\": \"x\",\r\n \"n\": 1.0,\n\"text\": \"<a\\nb>\"}")
	if err := s.Deliver(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	many := sinktest.SampleDigest("d", 5, 2)
	if err := s.Deliver(t.Context(), many); err != nil {
		t.Fatal(err)
	}
	payload, err := many.Payload()
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"topic":"x","n":1.0,"text":"<a\nb>"}` + "\n" + string(payload) + "\n"; read(t, path) != want {
		t.Errorf("got  %s\nwant %s", read(t, path), want)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != mode&^umask() {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	s = openTest(t, &Config{Path: path, Metadata: true})
	d.Notifications[0].ID = "6b050022000000df2e27fe14"
	const line = `{"topic":"x","n":1.0,"text":"<a\nb>",` +
		`"id":"6b050022000000df2e27fe14","time":"2026-11-24T03:10:26Z"}` + "\n"
	if err := s.Deliver(t.Context(), d); err != nil || !strings.HasSuffix(read(t, path), line) {
		t.Errorf("got %s, want the end %s", read(t, path), line)
	}
	d.Notifications[0].Data = []byte("{\n")
	if outcome, _ := relay.Classify(s.Deliver(t.Context(), d)); outcome != relay.OutcomePermanent {
		t.Errorf("what is not JSON: %s", outcome)
	}
	e, err := s.Preview(t.Context(), sinktest.Sample("a"))
	if err != nil || e.Method+" "+e.Target != "append to "+path || !strings.HasSuffix(string(e.Payload), "}\n") {
		t.Errorf("explained as %+v, %v", e, err)
	}
}

func umask() os.FileMode {
	mask := syscall.Umask(0)
	syscall.Umask(mask)
	return os.FileMode(mask)
}

// An incomplete line, for example after a crash, is not continued.
func TestCutLine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.jsonl")
	if err := os.WriteFile(path, []byte(`{"topic":"cut`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := openTest(t, &Config{Path: path})
	deliver(t, s, "a")
	deliver(t, s, "b")
	lines := strings.Split(read(t, path), "\n")
	if len(lines) != 4 || lines[0] != `{"topic":"cut` ||
		lines[1] != string(sinktest.Sample("a").Notifications[0].Data) {
		t.Errorf("%q", lines)
	}
}

func TestUnwritable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	inner := filepath.Join(dir, "inner")
	if err := os.Mkdir(inner, 0o700); err != nil {
		t.Fatal(err)
	}
	for path, word := range map[string]string{
		fifo: "not a regular file", inner: "is a directory", "/dev/full": "not a regular file",
		filepath.Join(dir, "none", "x"): "the directory " + dir + "/none does not exist: create it",
		filepath.Join(fifo, "x"):        "not a directory",
	} {
		s := openTest(t, &Config{Path: path, MaxSize: minMaxSize})
		refused(t, s.Deliver(t.Context(), sinktest.Sample("a")), word)
		if w := (&Config{Path: path}).listWarnings(); len(w) != 1 || w[0].Field != "path" {
			t.Errorf("%s: %v", path, w)
		}
	}
	if _, err := os.Stat(inner); err != nil {
		t.Error("the directory was renamed")
	}
	if os.Getuid() == 0 {
		return // may write anywhere
	}
	if err := os.Chmod(inner, 0o500); err != nil {
		t.Fatal(err)
	}
	s := openTest(t, &Config{Path: filepath.Join(inner, "x")})
	refused(t, s.Deliver(t.Context(), sinktest.Sample("a")), "may not write")
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		config  Config
		problem string
	}{
		{Config{Path: "x"}, ""},
		{Config{}, "path is missing"},
		{Config{Path: "x/"}, "path names a directory"},
		{Config{Path: "x", MaxSize: 1}, "max_size is too small"},
		{Config{Path: "x", MaxAge: 36e11}, "max_age is 1h0m0s: choose whole days"},
		{Config{Path: "x", MaxBackups: -1}, "max_backups is -1"},
	} {
		err := c.config.validate()
		if (err == nil) != (c.problem == "") || err != nil && !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%+v: %v", c.config, err)
		}
	}
	idle := Config{Path: filepath.Join(t.TempDir(), "x"), Compress: true}
	if w := idle.listWarnings(); len(w) != 1 || w[0].Field != "max_size" {
		t.Error(w)
	}
	c := (&Config{Path: "x"}).withDir("/etc/hubrelay")
	if got := c.absPath(); got != "/etc/hubrelay/x" {
		t.Error(got)
	}
}

func BenchmarkDeliver(b *testing.B) {
	s := openTest(b, &Config{Path: filepath.Join(b.TempDir(), "x"), MaxSize: 100 << 20, MaxBackups: 1})
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		deliver(b, s, fmt.Sprint(i))
	}
}
