// Package history reads segments of the log for replays. Replays that need the same part of the log share one read and
// the result, and the number of concurrent reads is limited.
//
// It does not know connections. Package hub decides what a client may see.
package history
