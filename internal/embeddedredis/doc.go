// Package embeddedredis provides a Redis if the operator has none. [Start] runs a redis-server with a unix socket in
// the data directory. [Memory] runs a Redis in this process, which loses its data with the process.
//
// It knows neither keys nor streams. It does not use a Redis client library, because it needs only a few commands.
package embeddedredis
