// Package cli contains the commands of hubrelay: their flags, the requests that they make to a daemon, and what they
// print.
//
// [Commands] returns all of them. What the daemon does is in relay/daemon; tables and colors are in package term.
package cli
