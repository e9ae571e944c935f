// Package client speaks to a hubrelay, or to any server of the same interface: it gets tokens, publishes, and listens
// with reconnection. Our own commands use it, and so may other programs.
//
// It knows nothing of the daemon's inside: no Redis, no configuration, no other room but the vocabulary.
package client
