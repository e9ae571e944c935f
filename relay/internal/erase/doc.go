// Package erase deletes the notifications of an account from Redis: from the log, the queues, the scheduled retries and
// the dead letters.
package erase
