// Package audit records security-relevant actions: who did what from where, and whether it was allowed. A [Log] writes
// them to a file and to a bounded stream in Redis, which [Store] searches.
// Repeated actions of an API key become one entry with a count. [Verify] detects changes of a file with a hash chain.
//
// Callers decide what is recorded. Entries never contain secrets or payloads.
package audit
