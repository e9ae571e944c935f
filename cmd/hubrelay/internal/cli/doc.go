// Package cli contains the commands of hubrelay: flags, requests to a daemon, and output.
//
// [Commands] returns all of them. The daemon is in relay/daemon. Tables and colors belong to package term.
package cli
