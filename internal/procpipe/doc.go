// Package procpipe reads the remaining output of a process that has ended, with a deadline. Plugin processes, agents
// and redis-server use it.
//
// Handling of the output does not belong here.
package procpipe
