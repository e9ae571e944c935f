// Package backbone keeps everything that moves through the relay in Redis: the partitioned log, the inbox and the
// quarantine, the queue of each sink with its Watermill Publisher and Subscriber, and the leases by which nodes share
// the work. Every operation here is safe to be killed in the middle and repeated by another node.
//
// What a notification means does not come in here: no validation, no matching, no delivery. Nor do HTTP or
// configuration. It is the only room, beside the small stores of auth and deliver, that speaks to Redis.
package backbone
