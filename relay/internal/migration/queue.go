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

// queuedJob is the entry of a job in its partition's stream.
type queuedJob struct {
	partition int
	entry     string
	job       string
}

// partitionsBySlot groups the partitions by what one read may name.
func (s *jobStore) partitionsBySlot() [][]int {
	var groups [][]int
	at := make(map[int]int)
	for p := range s.keys.Partitions() {
		slot := s.keys.Slot(s.keys.Jobs(p))
		i, ok := at[slot]
		if !ok {
			i = len(groups)
			at[slot], groups = i, append(groups, nil)
		}
		groups[i] = append(groups[i], p)
	}
	return groups
}

// createGroup creates the group of the workers where it is missing, which it is once in the life of a Redis.
func (s *jobStore) createGroup(ctx context.Context, partitions []int) error {
	for _, p := range partitions {
		err := s.client.XGroupCreateMkStream(ctx, s.keys.Jobs(p), workers, "0").Err()
		if err != nil && !strings.Contains(err.Error(), "BUSYGROUP") {
			return fmt.Errorf("create the group of the jobs' workers: %w", err)
		}
	}
	return nil
}

// read waits for new jobs of the partitions, which share a slot, and hands some to the worker.
func (s *jobStore) read(ctx context.Context, partitions []int, worker string, block time.Duration) ([]queuedJob, error) {
	streams := make([]string, 2*len(partitions))
	of := make(map[string]int, len(partitions))
	for i, p := range partitions {
		key := s.keys.Jobs(p)
		streams[i], streams[len(partitions)+i], of[key] = key, ">", p
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
		list = append(list, waitingOf(of[stream.Stream], stream.Messages)...)
	}
	return list, nil
}

// claimAbandoned hands jobs to the worker whose own worker has shown no life for idle.
func (s *jobStore) claimAbandoned(ctx context.Context, worker string, idle time.Duration, most int64) ([]queuedJob, error) {
	args := func(p int, start string) *redis.XAutoClaimArgs {
		return &redis.XAutoClaimArgs{Stream: s.keys.Jobs(p), Group: workers, Consumer: worker, MinIdle: idle, Start: start, Count: most}
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
		messages, next, e := claim.Result() // what failed first is in err
		list = append(list, waitingOf(p, messages)...)
		// Redis looks at ten times as many as it may claim: those that others work on may fill that.
		for e == nil && next != "0-0" && int64(len(list)) < most {
			messages, next, e = s.client.XAutoClaim(ctx, args(p, next)).Result()
			list, err = append(list, waitingOf(p, messages)...), cmp.Or(err, e)
		}
	}
	if err != nil {
		return list, fmt.Errorf("look for abandoned jobs: %w", err)
	}
	return list, nil
}

func waitingOf(partition int, messages []redis.XMessage) []queuedJob {
	list := make([]queuedJob, 0, len(messages))
	for _, m := range messages {
		id, _ := m.Values["job"].(string) // an entry without one is taken for a job that is gone
		list = append(list, queuedJob{partition, m.ID, id})
	}
	return list
}

// groupMissing tells whether a Redis was emptied, or replaced, behind our back.
func groupMissing(err error) bool { return err != nil && strings.Contains(err.Error(), "NOGROUP") }
