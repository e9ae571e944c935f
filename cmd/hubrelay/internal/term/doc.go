// Package term reads from and prints to terminals: tables, colors, progress bars, log lines, and passwords that are
// not echoed.
//
// Text is plain if the output is not a terminal. Text from the network must pass through [Sanitize] before it is
// printed. This package does not depend on the commands and makes no requests.
package term
