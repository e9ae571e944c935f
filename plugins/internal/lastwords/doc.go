// Package lastwords reads what a process has said before it ended, for the host in plugins and the keepers of
// plugins/directory, who wait only so long for the end of its output.
//
// What becomes of the output must not come in here.
package lastwords
