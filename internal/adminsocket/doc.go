// Package adminsocket opens, protects and finds the unix socket of the admin listener.
//
// The socket has mode 0600, and only processes of the daemon's user and of root may connect. The daemon checks the user
// of every connection, so a wrong mode or a shared directory does not give access to other users.
//
// Roles, tokens and handlers belong to relay/internal/adminserver.
package adminsocket
