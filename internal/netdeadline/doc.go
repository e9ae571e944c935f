// Package netdeadline ends the I/O of a connection with a context.
package netdeadline
