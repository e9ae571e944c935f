package plugintest

import "context"

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
