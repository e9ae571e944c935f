// Package adminapi contains what the server and the client of the admin API share.
//
// Handlers belong to relay/internal/adminserver, and commands to cmd/hubrelay.
package adminapi
