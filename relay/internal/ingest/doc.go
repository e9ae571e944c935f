// Package ingest is the door of the relay: it validates and normalises what producers send, by HTTP or through the
// inbox in Redis, and hands it to the log.
//
// Behind this package everything is trusted: a [relay.Notification] has a known topic, a hub, and Data in one fixed
// form. So nothing that is not fully checked may leave it, and the decoder accepts less than encoding/json does, never
// more. It knows neither HTTP handlers nor Redis commands; those belong to packages publicapi, eventlog and inbox.
//
// # The normal form
//
// Data is one line of JSON: topic, object (id, state, error, then unknown members), context (hub_id, account_id, the
// four arrays, then unknown members), "flags":null, then unknown members of the top level. Unknown members stand in the
// order and with the very bytes they came in, numbers and escapes included; only white space between tokens goes. The
// top-level members flags and cursor are the relay's own: what comes in under these names is dropped. traceparent and
// tracestate are appended from the request's headers where a notification has neither.
package ingest
