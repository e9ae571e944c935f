// Package inbox stores the inbox, the stream that any producer may write to, and the quarantine for entries that were
// rejected.
//
// Validation does not belong here; see package ingest.
package inbox
