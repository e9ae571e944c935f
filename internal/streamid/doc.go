// Package streamid compares the IDs of Redis streams, and encodes positions in the log as cursors, the opaque text that
// clients resume from.
//
// A cursor contains the position of one partition, for the pipeline of a hub, or of all partitions, for the pipeline of
// an account. The cursor determines where the stream starts. The API key determines what the client may see.
package streamid
