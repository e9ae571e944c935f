// Package ingest validates and normalizes notifications from producers, sent by HTTP or through the inbox in
// Redis, and appends them to the log.
//
// All other packages trust its output: a [relay.Notification] has a known topic, a hub, and Data in one fixed
// form. Therefore nothing leaves the package without a complete check, and the decoder accepts less than
// encoding/json does, never more. HTTP handlers and Redis commands do not belong here.
//
// # Normal form
//
// Data is one line of JSON: topic, object (id, state, error, then unknown members), context (hub_id, account_id,
// the four arrays, then unknown members), "flags":null, then unknown members of the top level. Unknown members
// keep their order and their exact bytes, including numbers and escapes. Only white space between tokens is
// removed. The top-level members flags and cursor are reserved: incoming values are dropped. traceparent and
// tracestate of the request headers are appended if a notification has neither.
package ingest
