// Package exec runs a command for each delivery, with the notification, the digest or the batch as JSON on its standard
// input.
//
// It makes one attempt and says what the exit status means: 0 is delivered, 65 (EX_DATAERR) is refused for good, anything
// else is tried again. Retries, schedules, limits and dead letters belong to relay/internal/delivery and must not come in; no other
// sink is imported. How programs are found and what they get of the environment is as for plugins.
package exec
