package relay_test

import (
	"path/filepath"
	"testing"

	"github.com/hubrelay/hubrelay/relay"
)

func TestFromFolder(t *testing.T) {
	for _, c := range []struct{ folder, name, want string }{
		{"/etc/hubrelay", "a/b", "/etc/hubrelay/a/b"},
		{"/etc/hubrelay", "../c", "/etc/c"},
		{"/etc/hubrelay", "/srv/link/../d", "/srv/link/../d"}, // a link leads elsewhere
	} {
		if got := relay.ResolvePath(c.folder, c.name); got != c.want {
			t.Errorf("%s in %s is %s, want %s", c.name, c.folder, got, c.want)
		}
	}
	if got := relay.ResolvePath(".", "a"); !filepath.IsAbs(got) || filepath.Base(got) != "a" {
		t.Errorf("below the working folder it is %s", got)
	}
}
