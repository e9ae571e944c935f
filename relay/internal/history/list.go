package history

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/resp"
)

// blockCount is the number of blocks of one read of a shard. Together, the shards hold about 16 MiB in memory at most.
const blockCount = 8

// Selection selects records of deliveries that are complete.
type Selection struct {
	// Matches reports whether a record is selected. The record is an attempt or a drop.
	Matches func(Record) bool
	// Since is the earliest time at which records were stored.
	Since time.Time
	// After is the Next of the previous list.
	After string
	// Limit is the maximum number of records. It is positive.
	Limit int
}

// List is a part of the selected records.
type List struct {
	// Records are the newest first, by the time at which they were stored.
	Records []Record
	// Next continues the list. It is empty at the end.
	Next string
}

// ListRecords returns the newest selected records. It returns after about two seconds with the records that it has found by
// then. The error is [ErrInvalidCursor] or means that Redis is unreachable.
func (s *Store) ListRecords(ctx context.Context, sel Selection) (List, error) {
	deadline := time.Now().Add(searchTime)
	after, skip, err := parseBlockCursor(sel.After)
	if err != nil {
		return List{}, err
	}
	if err := s.names.loadAll(ctx); err != nil {
		return List{}, err
	}
	merged := mergedStreams[resp.Entry]{
		read: func(ctx context.Context, shard int, end string) ([]resp.Entry, error) {
			list, err := resp.ReadEntriesBack(ctx, s.conn.Commands(), maxFindBytes, Key(s.keys, shard), end, blockCount)
			return list, redisconn.WrapError("read the history", err)
		},
		idOf: func(e resp.Entry) string { return e.ID },
	}
	if err := merged.open(ctx, allShards(), after, "+"); err != nil {
		return List{}, err
	}
	var list List
	for {
		newest := merged.next(sel.Since)
		if newest == nil {
			list.Next = ""
			return list, nil
		}
		if len(list.Records) == sel.Limit || list.Next != "" && time.Now().After(deadline) {
			return list, nil
		}
		records := s.matchBlock(newest.list[0], sel.Matches)
		if skip > 0 && newest.head.next() != *after {
			skip = 0 // the block was removed
		}
		records = records[min(skip, len(records)):]
		if free := sel.Limit - len(list.Records); len(records) > free {
			list.Records = append(list.Records, records[:free]...)
			// The next page starts in the middle of this block.
			list.Next = newest.head.String() + ":" + strconv.Itoa(skip+free)
			return list, nil
		}
		skip = 0
		list.Records = append(list.Records, records...)
		list.Next = newest.head.String()
		if err := merged.advance(ctx, newest); err != nil {
			return List{}, err
		}
	}
}

func allShards() []int {
	shards := make([]int, shardCount)
	for i := range shards {
		shards[i] = i
	}
	return shards
}

// parseBlockCursor parses a cursor. With ":" and a number after the position, the list continues in the block at the
// position, after that number of records.
func parseBlockCursor(text string) (after *position, skip int, err error) {
	if text == "" {
		return nil, 0, nil
	}
	at, number, isInBlock := strings.Cut(text, ":")
	p, ok := parsePosition(at)
	if !ok {
		return nil, 0, ErrInvalidCursor
	}
	if !isInBlock {
		return &p, 0, nil
	}
	if skip, err = strconv.Atoi(number); err != nil || skip < 0 {
		return nil, 0, ErrInvalidCursor
	}
	p = p.next()
	return &p, skip, nil
}

// matchBlock returns the matching records of a block, the newest first.
func (s *Store) matchBlock(e resp.Entry, matches func(Record) bool) (records []Record) {
	b := blockOf(e)
	for {
		raw, err := b.next()
		if err != nil || raw == nil {
			slices.Reverse(records)
			return records
		}
		if raw.kind() == kindClients {
			continue
		}
		record, err := raw.decode(b.node, s.names)
		if err == nil && (record.Attempt != nil || record.Drop != nil) && matches(record) {
			records = append(records, record)
		}
	}
}
