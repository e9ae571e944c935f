// Package testkit contains helpers that the tests of several packages share.
//
// Only tests and other test packages import it. It imports no package of hubrelay, so every test can use it.
package testkit

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"sync"
	"testing"
)

// Build builds the programs of main packages into a directory. It enables the race detector if the test uses it.
func Build(dir string, packages ...string) error {
	return buildPrograms(dir, underRace(), packages...)
}

func buildPrograms(dir string, race bool, packages ...string) error {
	// Without debug information, a program links in half the time.
	args := []string{"build", "-ldflags=-w", "-o", dir + string(filepath.Separator), fmt.Sprintf("-race=%t", race)}
	if out, err := exec.Command("go", append(args, packages...)...).CombinedOutput(); err != nil {
		return fmt.Errorf("build %v: %w\n%s", packages, err, out)
	}
	return nil
}

// underRace reports whether the tests run with -race.
func underRace() bool {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return false
	}
	for _, s := range info.Settings {
		if s.Key == "-race" {
			return s.Value == "true"
		}
	}
	return false
}

// Programs builds each program once, when a test first needs it. The zero value is ready for use.
type Programs struct {
	mu    sync.Mutex
	dir   string
	built map[string]error
}

// Main runs the tests, removes the programs and returns the exit status. Call it from TestMain.
func (p *Programs) Main(m *testing.M) int {
	handleInheritedSignals() // for tests that start programs without Start
	status := m.Run()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dir == "" {
		return status
	}
	if err := os.RemoveAll(p.dir); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		return max(status, 1)
	}
	return status
}

// BuildWithoutRace returns the path of a program that was built without the race detector, which needs several times the
// memory. It is for tests that measure memory.
func BuildWithoutRace(t testing.TB, pkg string) string {
	t.Helper()
	dir := t.TempDir()
	abs, err := filepath.Abs(pkg)
	if err = errors.Join(err, buildPrograms(dir, false, pkg)); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, filepath.Base(abs))
}

// Path returns the path of the program of a main package, which is a directory such as "../hubrelay".
func (p *Programs) Path(t testing.TB, pkg string) string {
	t.Helper()
	dir, err := filepath.Abs(pkg)
	if err = errors.Join(err, p.build(pkg)); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return filepath.Join(p.dir, filepath.Base(dir))
}

func (p *Programs) build(pkg string) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dir == "" {
		if p.dir, err = os.MkdirTemp("", "hubrelay-test"); err != nil {
			return err
		}
		p.built = map[string]error{}
	}
	if err, done := p.built[pkg]; done {
		return err
	}
	err = Build(p.dir, pkg)
	p.built[pkg] = err
	return err
}
