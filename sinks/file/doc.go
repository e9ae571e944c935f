// Package file writes notifications as JSON lines: kind file appends them to a file that it can rotate, kind stdout
// writes them to the daemon's standard output. A digest is one line too, and a batch a
// line for each of its notifications, in one write.
//
// It makes one attempt and says what an error means. Retries, schedules, limits and dead letters belong to relay/internal/delivery
// and must not come in; no other sink is imported.
package file
