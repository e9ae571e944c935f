// Package quota limits how many notifications and bytes a key, an account and an address may publish per second, and
// how many other requests a key and an account may send. All nodes share one token bucket per limit in Redis.
//
// A node leases tokens for a tenth of a second at once and spends them without Redis, so most requests need no round
// trip. Leased tokens are taken from the bucket first, so all nodes together never exceed a limit. A node returns no
// tokens: what it does not spend within a second is lost.
//
// Publications through the inbox have no quota, because a client that can write to Redis does not need the API.
package quota
