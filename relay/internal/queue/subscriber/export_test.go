package subscriber

// WaitingBytes returns the size of the entries in memory that wait for a worker.
func (s *Subscriber) WaitingBytes() int64 { return s.waitingBytes.Load() }

// The limits of WaitingBytes.
const (
	TopicBufferBytes  = topicBufferBytes
	SharedBufferBytes = sharedBufferBytes
	SmallReadBytes    = smallReadBytes
)
