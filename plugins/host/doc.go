// Package host runs a sink or a driver of migrations in a process of its own: it starts the program by
// hashicorp/go-plugin, speaks with it, watches over it, and starts it again when it has died.
//
// A [Host] is one sink, a [Driver] one driver. The protocols are in plugins/proto, what authors write against in
// plugins/sdk. What a configuration looks like is the business of plugins/settings and must not come in; neither must
// retries of a delivery or of a migration.
package host
