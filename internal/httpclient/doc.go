// Package httpclient is what sinks that post over HTTP share, since they never import each other: a guarded transport that
// follows no redirect and asks no proxy, answers of bounded length, errors without the secret parts of a URL, and settings
// in place or in a file that is read again when it changes.
//
// It knows no sink, no payload and no meaning of a status. Retries, schedules and limits belong to relay/internal/delivery.
package httpclient
