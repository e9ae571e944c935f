package migration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// queuedJob is the entry of a job in the stream of its partition.
type queuedJob struct {
	partition int
	entry     string
	job       string
}

// partitionsBySlot groups the partitions whose job streams can be read with one command.
func (s *jobStore) partitionsBySlot() [][]int {
	var groups [][]int
	groupIndex := make(map[int]int)
	for p := range s.keys.Partitions() {
		slot := s.keys.Slot(s.keys.jobs(p))
		i, ok := groupIndex[slot]
		if !ok {
			i = len(groups)
			groupIndex[slot], groups = i, append(groups, nil)
		}
		groups[i] = append(groups[i], p)
	}
	return groups
}

// createGroup creates the consumer group of the workers. The group is missing only in an empty Redis.
func (s *jobStore) createGroup(ctx context.Context, partitions []int) error {
	for _, p := range partitions {
		err := s.client.XGroupCreateMkStream(ctx, s.keys.jobs(p), workers, "0").Err()
		if err != nil && !strings.Contains(err.Error(), "BUSYGROUP") {
			return fmt.Errorf("create the consumer group of the jobs: %w", err)
		}
	}
	return nil
}

// readNew waits for new jobs of the partitions, which share a slot, and assigns at most one per partition to the
// worker.
func (s *jobStore) readNew(
	ctx context.Context, partitions []int, worker string, block time.Duration,
) ([]queuedJob, error) {
	streams := make([]string, 2*len(partitions))
	partitionOf := make(map[string]int, len(partitions))
	for i, p := range partitions {
		key := s.keys.jobs(p)
		streams[i], streams[len(partitions)+i], partitionOf[key] = key, ">", p
	}
	reply, err := s.readers.XReadGroup(ctx, &redis.XReadGroupArgs{
		Group: workers, Consumer: worker, Streams: streams, Count: 1, Block: block,
	}).Result()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the jobs: %w", err)
	}
	var list []queuedJob
	for _, stream := range reply {
		list = append(list, toQueuedJobs(partitionOf[stream.Stream], stream.Messages)...)
	}
	return list, nil
}

// claimAbandoned assigns abandoned jobs to the worker, which are jobs without a heartbeat for idle. limit is the
// maximum number per request.
func (s *jobStore) claimAbandoned(
	ctx context.Context, worker string, idle time.Duration, limit int64,
) ([]queuedJob, error) {
	args := func(p int, start string) *redis.XAutoClaimArgs {
		return &redis.XAutoClaimArgs{
			Stream: s.keys.jobs(p), Group: workers, Consumer: worker, MinIdle: idle, Start: start, Count: limit,
		}
	}
	claims := make([]*redis.XAutoClaimCmd, s.keys.Partitions())
	_, err := s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for p := range claims {
			claims[p] = pipe.XAutoClaim(ctx, args(p, "0-0"))
		}
		return nil
	})
	var list []queuedJob
	for p, claim := range claims {
		messages, next, e := claim.Result() // err already contains the first error
		list = append(list, toQueuedJobs(p, messages)...)
		// Redis examines ten entries per entry to claim. Entries of running jobs may use up this number.
		for e == nil && next != "0-0" && int64(len(list)) < limit {
			messages, next, e = s.client.XAutoClaim(ctx, args(p, next)).Result()
			list, err = append(list, toQueuedJobs(p, messages)...), cmp.Or(err, e)
		}
	}
	if err != nil {
		return list, fmt.Errorf("claim abandoned jobs: %w", err)
	}
	return list, nil
}

func toQueuedJobs(partition int, messages []redis.XMessage) []queuedJob {
	list := make([]queuedJob, 0, len(messages))
	for _, m := range messages {
		id, _ := m.Values["job"].(string) // an entry without an ID counts as a missing job
		list = append(list, queuedJob{partition, m.ID, id})
	}
	return list
}

// isGroupMissing reports whether err means that Redis was emptied or replaced.
func isGroupMissing(err error) bool { return err != nil && strings.Contains(err.Error(), "NOGROUP") }
