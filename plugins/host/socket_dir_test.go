package host

import (
	"os"
	"sync"
	"testing"
)

// Plugins that start at once, of one daemon or several, do not sweep each other's folders away.
func TestNewSocketDir_ConcurrentStarts(t *testing.T) {
	t.Parallel()
	root, err := os.MkdirTemp("/tmp", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	var starts sync.WaitGroup
	for range 8 {
		starts.Go(func() {
			for range 100 {
				folder, err := newSocketDir(root)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := os.Stat(folder.path); err != nil {
					t.Error(err)
				}
				folder.remove()
			}
		})
	}
	starts.Wait()
}
