// Package netguard keeps sinks from being used to reach into the network they run in: it judges the address of every
// connection after the name was resolved and just before it is dialled, so that neither a name that points inwards
// nor one that changes between check and use gets through.
//
// It imports the standard library only and knows no protocol: sinks that dial share it without importing each other.
package netguard
