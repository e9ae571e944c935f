package relay_test

import (
	"path/filepath"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

func TestResolvePath(t *testing.T) {
	for _, c := range []struct{ dir, name, want string }{
		{"/etc/hubrelay", "a/b", "/etc/hubrelay/a/b"},
		{"/etc/hubrelay", "../c", "/etc/c"},
		{"/etc/hubrelay", "/srv/link/../d", "/srv/link/../d"}, // may be a symbolic link
	} {
		if got := relay.ResolvePath(c.dir, c.name); got != c.want {
			t.Errorf("ResolvePath(%q, %q) = %q, want %q", c.dir, c.name, got, c.want)
		}
	}
	if got := relay.ResolvePath(".", "a"); !filepath.IsAbs(got) || filepath.Base(got) != "a" {
		t.Errorf("relative to the working directory: got %s", got)
	}
}
