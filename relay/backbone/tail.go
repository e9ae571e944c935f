package backbone

import "github.com/hubrelay/hubrelay/relay"

// Batch is what one read of a partition's log brought.
type Batch struct {
	Partition int
	// Prev is the position before the batch and Last that of its final notification, which the next batch has as Prev.
	Prev, Last string
	// Notifications are in log order, each with its Cursor. There may be none where Gap is set.
	Notifications []relay.Notification
	// Gap means that entries between Prev and the first notification were trimmed away unread, or that the log was
	// reset (data lost by a restart or failover) and goes on from Last.
	Gap bool
}
