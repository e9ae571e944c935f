package inbox

import "github.com/hubrelay/hubrelay/internal/keyspace"

// Key is the stream that producers write to, with the fields data and, optionally, key.
func Key(k keyspace.Space) string { return k.Global("inbox") }

// PositionKey stores the ID of the last inbox entry that was appended to a partition's log.
func PositionKey(k keyspace.Space, partition int) string {
	return k.InPartition("inbox:position", partition)
}

// QuarantineKey is the stream of rejected entries, with the fields data and reason.
func QuarantineKey(k keyspace.Space) string { return k.InGroup("quarantine", "") }

// QuarantinePositionKey stores the ID of the last inbox entry that was moved to the quarantine.
func QuarantinePositionKey(k keyspace.Space) string { return k.InGroup("quarantine", ":position") }
