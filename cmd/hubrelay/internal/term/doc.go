// Package term reads from and prints to terminals: tables, colors, progress bars, log lines, and passwords that are
// not echoed.
//
// Output is plain if it is not a terminal. Text from the network must pass [Sanitize] before it is printed. This
// package knows no commands and makes no requests.
package term
