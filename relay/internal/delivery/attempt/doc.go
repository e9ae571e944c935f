// Package attempt calls a sink once, with a time limit, and classifies why the call failed.
//
// A sink may panic, and it may never return. The package does not decide whether or when an attempt is made.
package attempt
