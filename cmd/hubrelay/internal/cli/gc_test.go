package cli

import "testing"

func TestGCPercent(t *testing.T) {
	t.Parallel()
	for live, want := range map[uint64]int{0: 300, 8 << 20: 300, 64 << 20: 200, 128 << 20: 100, 4 << 30: 100} {
		if got := gcPercent(live); got != want {
			t.Errorf("live heap of %d MiB: got %d, want %d", live>>20, got, want)
		}
	}
}
