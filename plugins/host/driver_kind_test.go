package host

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
)

func TestDriverKind_Open(t *testing.T) {
	kind := DriverKind("directory")
	c, ok := kind.Config().(*Config)
	if !ok || c.IsSet() {
		t.Fatalf("%T is given", kind.Config())
	}
	set := relay.DriverSettings{Log: testkit.Log(t)}
	if _, err := kind.Open(set, c); err == nil || !strings.Contains(err.Error(), "command is missing") {
		t.Error(err)
	}
	c.Command = []string{filepath.Join(t.TempDir(), "absent")}
	events := make(chan string, 8)
	set.CountEvent = func(event string) { events <- event }
	d, err := kind.Open(set, c)
	if err != nil || !c.IsSet() {
		t.Fatal(err)
	}
	if _, err := d.Describe(t.Context()); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Error(err)
	}
	if got := <-events; got != "not_started" {
		t.Error(got)
	}
	for range 2 {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
}
