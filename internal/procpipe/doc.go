// Package procpipe reads what a process has said before it ended, for those who wait only so long for the end of its
// output: the host of plugins, the keepers of plugins/directory, and whoever runs redis-server.
//
// What becomes of the output must not come in here.
package procpipe
