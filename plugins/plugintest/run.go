package plugintest

import (
	"context"
	"os"
)

// T is the part of *testing.T that Run needs.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Logf(format string, args ...any)
}

// Run runs the checks as a test.
func Run(t T, p Plugin) {
	t.Helper()
	Check(context.Background(), p, func(r Result) {
		t.Helper()
		switch {
		case r.Err == nil:
		case r.Advice:
			t.Logf("advice: it should be that the plugin %s: %v", r.Name, r.Err)
		default:
			t.Errorf("failed: the plugin %s: %v", r.Name, r.Err)
		}
	})
}

// M is the part of *testing.M that Main needs.
type M interface{ Run() int }

// pluginArgument makes a test binary run as the plugin.
const pluginArgument = "plugin"

// Main runs the tests. In a process that [Self] started, it runs the plugin's main instead. TestMain exits with its
// result.
func Main(m M, main func()) int {
	if len(os.Args) > 1 && os.Args[1] == pluginArgument {
		main()
		return 0
	}
	return m.Run()
}

// Self returns the command that runs the test binary as the plugin, if its TestMain calls [Main].
func Self() []string { return []string{os.Args[0], pluginArgument} }
