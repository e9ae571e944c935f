// Package redistest starts real redis-server processes for tests, each on a unix socket in a folder of its own.
//
// It knows nothing of hubrelay's keys, and nothing but tests may import it.
package redistest
