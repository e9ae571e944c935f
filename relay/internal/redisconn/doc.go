// Package redisconn connects to Redis, be it one server, Sentinel or a cluster. It classifies errors, waits for
// replicas and checks the server. The stores of the relay (packages eventlog, inbox, queue, lease and others) share
// one [Conn].
//
// Keys and scripts of the stores do not belong here.
package redisconn
