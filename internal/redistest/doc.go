// Package redistest starts real redis-server processes for tests, each with its own directory and unix socket.
//
// It does not depend on the keys of hubrelay. Only tests may import it.
package redistest
