package app

import "testing"

func TestWave(t *testing.T) {
	var w wave
	for i, step := range []struct {
		clients int
		over    bool
	}{
		{0, false},
		{900, false},
		{905, false}, // too few
		{2000, false},
		{5000, false},
		{5010, true},
		{5010, false}, // once
		{3000, false},
		{2990, true}, // they may go, too
		{3000, false},
	} {
		if got := w.over(step.clients); got != step.over {
			t.Errorf("step %d, %d clients: %v", i, step.clients, got)
		}
	}
}
