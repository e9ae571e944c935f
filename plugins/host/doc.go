// Package host runs plugins: sinks and migration drivers in separate processes. It starts a program with
// hashicorp/go-plugin, supervises it, and restarts it after a crash.
//
// A [Host] is one sink, a [Driver] is one driver, and [Config] is the configuration of either. The protocols are in
// plugins/proto, and authors of plugins use plugins/sdk. Retries of deliveries and migrations do not belong here.
package host
