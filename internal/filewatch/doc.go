// Package filewatch reloads a file after each change. [Watcher] detects the changes, and [Reloader] decides when to
// load the file again and which errors to log.
package filewatch
