package testkit

import (
	"flag"
	"strconv"
	"testing"
)

// RunParallel lets at least n tests of the package run at the same time, even if there are fewer processors. It keeps
// the value of -parallel if the command line has that flag.
//
// Call it in TestMain of packages whose tests wait most of the time.
func RunParallel(n int) {
	testing.Init()
	if !flag.Parsed() {
		flag.Parse()
	}
	const name = "test.parallel"
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == name })
	if given {
		return
	}
	if now, err := strconv.Atoi(flag.Lookup(name).Value.String()); err == nil && now >= n {
		return
	}
	_ = flag.Set(name, strconv.Itoa(n)) // cannot fail: the flag accepts every number
}
