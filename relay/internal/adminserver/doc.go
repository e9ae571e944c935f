// Package adminserver serves operators and their tools. [Health] answers probes and Prometheus without a login.
// [Admin] serves the API of the hubrelay commands and profiles, on a unix socket or with tokens, and checks the
// role of every caller.
//
// Other packages count in small interfaces of their own, and [Metrics] implements most of them. The daemon implements
// [Sinks], [Sources] and [Connections]. Modules add their routes. Decisions about notifications or deliveries do not
// belong here.
package adminserver
