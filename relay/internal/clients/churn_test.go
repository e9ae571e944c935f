package clients

import "testing"

// Continuous connects and disconnects are not a wave, whatever their total.
func TestChurnDetector_IgnoresSteadyChanges(t *testing.T) {
	t.Parallel()
	var w churnDetector
	for i := range 1000 {
		if w.settled(churnQuietLimit * i) {
			t.Fatalf("got a wave after %d seconds", i)
		}
	}
	for i := range 3 { // a slow wave
		w.settled(20_000 + 400*(i+1))
	}
	if !w.settled(21_201) {
		t.Error("got no end of the wave")
	}
}

func TestChurnDetector_ReportsWaveOnce(t *testing.T) {
	t.Parallel()
	var w churnDetector
	for i, step := range []struct {
		clients int
		over    bool
	}{
		{0, false},
		{900, false},
		{905, false}, // below the threshold
		{2000, false},
		{5000, false},
		{5010, true},
		{5010, false}, // reported once
		{3000, false},
		{2990, true}, // a wave of disconnects
		{3000, false},
	} {
		if got := w.settled(step.clients); got != step.over {
			t.Errorf("step %d, %d clients: %v", i, step.clients, got)
		}
	}
}
