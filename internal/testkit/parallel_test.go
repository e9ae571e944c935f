package testkit_test

import (
	"flag"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

func TestRunParallelOnlyRaises(t *testing.T) {
	parallel := flag.Lookup("test.parallel").Value
	before := parallel.String()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	t.Cleanup(func() { _ = parallel.Set(before) }) // not flag.Set, which would count as given

	for _, c := range []struct {
		n         int
		now, want string
	}{{8, "16", "16"}, {8, "2", "8"}} {
		if given {
			c.want = c.now
		}
		if err := parallel.Set(c.now); err != nil {
			t.Fatal(err)
		}
		testkit.RunParallel(c.n)
		if got := parallel.String(); got != c.want {
			t.Errorf("RunParallel(%d) with %s: got %s, want %s", c.n, c.now, got, c.want)
		}
	}
}
