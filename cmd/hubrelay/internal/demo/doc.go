// Package demo runs a relay on this machine with sample events, a websocket client, a webhook receiver and migrations.
//
// The client, the producer and the receiver use only the public HTTP API, like the programs of a user.
package demo
