// Package embeddedredis provides a Redis where the operator names none: [Start] runs a redis-server of our own behind
// a unix socket in the data folder, and [Memory] runs one inside the process whose contents end with it.
//
// It knows neither keys nor streams, and it does not use a Redis client library: the few commands it sends are
// written here.
package embeddedredis
