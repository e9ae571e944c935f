// Package adminserver serves operators and their tools. [Health] answers probes and Prometheus without a login.
// [Admin] serves the API of the hubrelay commands and profiles, on a unix socket or with tokens, and checks the
// role of every caller.
//
// Only this package uses Prometheus: other packages declare small interfaces, and [Metrics] implements them. The
// interfaces [Sinks], [Sources], [Connections] and [Inventory] are implemented by the daemon. Decisions about
// notifications or deliveries do not belong here.
package adminserver
