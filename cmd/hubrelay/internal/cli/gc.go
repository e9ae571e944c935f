package cli

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/term"
)

const (
	// maxGCPercent starts a garbage collection when the heap has four times the size of the live data. A notification leaves
	// more than a KiB of garbage, but little data is live. Reading the queues is a fifth faster than with the default of
	// 100, and costs a few MiB.
	maxGCPercent = 300
	// minGCPercent applies to a large heap, such as with many large events that wait for sinks.
	minGCPercent = 100
	// minGCChange is the minimum change of the percentage, because a change stops all goroutines for a moment.
	minGCChange = 20
	// garbageTarget is the garbage in bytes between two collections, as far as the percentages allow it.
	garbageTarget = 128 << 20
)

// tuneGC sets the percentage of the garbage collector, and again after each collection, unless GOGC is set.
func tuneGC(std term.Streams) {
	if std.Getenv("GOGC") == "" {
		debug.SetGCPercent(maxGCPercent)
		adjustAfterGC(maxGCPercent)
	}
}

// adjustAfterGC adjusts the percentage after the next garbage collection, and after all later ones.
func adjustAfterGC(percent int) {
	sentinel := new([16]byte) // large enough to get its own allocation
	runtime.AddCleanup(sentinel, func(percent int) {
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(live)
		wanted := gcPercent(live[0].Value.Uint64())
		if wanted >= percent+minGCChange || wanted <= percent-minGCChange {
			debug.SetGCPercent(wanted)
			percent = wanted
		}
		adjustAfterGC(percent)
	}, percent)
}

// gcPercent returns the percentage for a size of the live heap in bytes.
func gcPercent(live uint64) int {
	return int(min(max(garbageTarget*100/max(live, 1), minGCPercent), maxGCPercent)) //nolint:gosec // at most maxGCPercent
}
