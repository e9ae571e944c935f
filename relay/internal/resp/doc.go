// Package resp reads stream entries over its own connections, with one allocation for each entry. go-redis would make a
// map and a dozen strings of an entry, which doubles the cost of a subscriber.
//
// It speaks only the commands of blocking reads. All other commands go through package redisconn.
package resp
