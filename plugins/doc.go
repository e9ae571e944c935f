// Package plugins runs a sink in a process of its own: it starts the program by hashicorp/go-plugin, streams deliveries
// to it, watches over it, and starts it again when it has died.
//
// A [Host] is one plugin. The protocol is in plugins/proto, what authors write against in plugins/sdk. What a sink's
// configuration looks like is the business of sinks/plugin and must not come in, and neither must retries of a delivery.
package plugins
