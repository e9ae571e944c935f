// Package source copies notifications from an upstream: another relay, or a platform with the same token endpoint
// and websocket. A lease selects one node per source. Package ingest validates the notifications, and they are
// stored together with the new position, so a crash neither loses nor duplicates any.
//
// An upstream without cursors is read live, at most once. Possible losses are counted.
//
// Package sourcestore stores the position, and package client implements the protocol. Redis commands, websockets and
// the configuration do not belong here.
package source
