// Package netguard protects the network of the relay against server-side request forgery by sinks. It checks the
// address of every connection after DNS resolution and just before the dial. A name that resolves to an internal
// address is therefore blocked, even if its address changes between a check and the dial.
//
// Protocols and sinks do not belong here. All sinks that dial share this package.
package netguard
