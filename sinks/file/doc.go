// Package file writes notifications as JSON lines. The kind file appends them to a file that it can rotate, and the
// kind stdout writes them to standard output. A digest is one line. A batch is one line per notification, in one write.
//
// It makes one attempt and classifies the error. Retries, schedules, limits and dead letters belong to
// relay/internal/delivery. It imports no other sink.
package file
