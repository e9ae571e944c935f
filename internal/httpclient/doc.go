// Package httpclient is the HTTP client shared by all sinks, because sinks never import each other. It has a guarded
// transport that follows no redirects and uses no proxy. It limits the length of responses, removes the secret parts of
// a URL from errors, and reads settings from the configuration or from files that are reloaded when they change.
//
// Nothing that belongs to one sink goes in here: no payloads and no interpretation of status codes. Retries, schedules
// and rate limits belong to relay/internal/delivery.
package httpclient
