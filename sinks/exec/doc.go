// Package exec runs a command for each delivery, with the notification, the digest or the batch as JSON on its standard
// input.
//
// It makes one attempt and classifies the exit status: 0 is delivered, 65 (EX_DATAERR) is permanent, and anything else
// is retried. Retries, schedules, limits and dead letters belong to relay/internal/delivery. It imports no other sink.
// Programs and environments follow the rules of plugins.
package exec
