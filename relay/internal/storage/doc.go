// Package storage stops publishing before the memory of Redis is full, so that deliveries, retries and acknowledgments
// have room and free space.
//
// It knows neither keys nor how notifications are stored.
package storage
