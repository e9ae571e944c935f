package plugintest

import (
	"context"
	"os"
)

// T is what Run needs of a *testing.T.
type T interface {
	Helper()
	Errorf(format string, args ...any)
	Logf(format string, args ...any)
}

// Run makes a test of the checks.
func Run(t T, p Plugin) {
	t.Helper()
	Check(context.Background(), p, func(r Result) {
		t.Helper()
		switch {
		case r.Err == nil:
		case r.Advice:
			t.Logf("advice: it should be that the plugin %s: %v", r.Name, r.Err)
		default:
			t.Errorf("it is not so that the plugin %s: %v", r.Name, r.Err)
		}
	})
}

// M is what Main needs of a *testing.M.
type M interface{ Run() int }

// pluginArgument has a test binary run as the plugin.
const pluginArgument = "plugin"

// Main runs the tests, or the plugin's own main in a process that was started by [Self]; a TestMain exits with what it returns.
func Main(m M, main func()) int {
	if len(os.Args) > 1 && os.Args[1] == pluginArgument {
		main()
		return 0
	}
	return m.Run()
}

// Self is the command that runs the test binary as the plugin, where its TestMain calls [Main].
func Self() []string { return []string{os.Args[0], pluginArgument} }
