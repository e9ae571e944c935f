package relay

import "testing"

func TestSeverity(t *testing.T) {
	for _, c := range []struct {
		topic, state, err string
		want              Severity
	}{
		{"container.error", "", "", SeverityBad},
		{"container.state.changed", "running", "", SeverityChange},
		{"container.state.changed", "error", "", SeverityBad},
		{"container.state.changed", "running", "oops", SeverityBad},
		{"container.instance.health.status.changed", "unhealthy", "", SeverityBad},
		{"container.instance.health.status.changed", "healthy", "", SeverityGood},
		{"container.instance.state.changed", "failed", "", SeverityBad},
		{"container.state.changed", "Crashed", "", SeverityBad},
		{"job.state.changed", "dead", "", SeverityBad},
		{"infrastructure.server.state.changed", "offline", "", SeverityBad},
		{"stack.state.changed", "degraded", "", SeverityBad},
		{"container.desired_state.changed", "offline", "", SeverityChange},
		{"container.updated", "offline", "", SeverityQuiet},
		{"container.created", "", "", SeverityGood},
		{"infrastructure.server.new", "", "", SeverityGood},
		{"container.created", "", "no space", SeverityBad},
		{"container.updated", "", "", SeverityQuiet},
		{"container.reconfigured", "", "", SeverityQuiet},
		{"hubrelay.deadletter.created", "", "", SeverityBad},
		{"hubrelay.sink.disabled", "", "", SeverityBad},
		{"hubrelay.sink.recovered", "", "", SeverityGood},
		{"", "", "", SeverityChange},
	} {
		if got := SeverityOf(c.topic, Object{State: c.state, Error: c.err}); got != c.want {
			t.Errorf("%s %q %q: %d, want %d", c.topic, c.state, c.err, got, c.want)
		}
	}
}
