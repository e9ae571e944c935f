// Package adminserver serves operators and their tools. [Health] answers probes and Prometheus without a login. [Admin] serves the
// API of the hubrelay commands and profiles, on a unix socket or with tokens, and checks the [Role] of every caller.
//
// [Metrics] is the only place that knows Prometheus: other packages declare the few methods they call, and Metrics has
// them. [Sinks] is what the API needs of the others. Nothing here decides about notifications or deliveries.
package adminserver
