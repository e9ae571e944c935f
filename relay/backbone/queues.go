package backbone

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// QueueLengths returns how many entries each sink's queues hold, those in flight included. It asks Redis even where
// there are no sinks, so that an error always means that Redis is away.
func (b *Backbone) QueueLengths(ctx context.Context, sinks []string) ([]int64, error) {
	partitions := b.keys.Partitions()
	lengths := make([]*redis.IntCmd, 0, len(sinks)*partitions)
	_, err := b.commands.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Exists(ctx, b.keys.StoredPartitions())
		for _, sink := range sinks {
			for _, queue := range b.keys.Queues(sink) {
				lengths = append(lengths, pipe.XLen(ctx, queue))
			}
		}
		return nil
	})
	if err != nil {
		return nil, explain("measure the queues", err)
	}
	sums := make([]int64, len(sinks))
	for i, n := range lengths {
		sums[i/partitions] += n.Val()
	}
	return sums, nil
}
