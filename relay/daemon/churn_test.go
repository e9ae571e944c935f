package daemon

import "testing"

// What comes and goes all the time is no wave, however much it is in the end.
func TestSteadyClientsAreNoWave(t *testing.T) {
	t.Parallel()
	var w churnDetector
	for i := range 1000 {
		if w.settled(churnQuietLimit * i) {
			t.Fatalf("a wave is over after %d seconds", i)
		}
	}
	for i := range 3 { // a slow one is
		w.settled(20_000 + 400*(i+1))
	}
	if !w.settled(21_201) {
		t.Error("a wave is not over")
	}
}

func TestWave(t *testing.T) {
	t.Parallel()
	var w churnDetector
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
		if got := w.settled(step.clients); got != step.over {
			t.Errorf("step %d, %d clients: %v", i, step.clients, got)
		}
	}
}
