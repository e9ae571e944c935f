// Package redistest starts real redis-server processes for tests, each with its own directory and unix socket.
//
// It knows nothing about the keys of hubrelay. Only tests may import it.
package redistest
