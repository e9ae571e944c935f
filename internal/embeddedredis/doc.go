// Package embeddedredis provides a Redis for operators who do not run their own. [Start] runs a redis-server with a
// unix socket in the data directory. [Memory] runs a Redis in this process, which loses its data when the process ends.
//
// The package does not depend on the keys and streams of the relay. It does not use a Redis client library, because it
// needs only a few commands.
package embeddedredis
