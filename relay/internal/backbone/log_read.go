package backbone

import (
	"bufio"
	"context"
	"errors"
	"io"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/streamid"
	"github.com/hubrelay/hubrelay/relay"
)

// ReadFrom returns up to count notifications behind a position in a partition's log, for a reader that comes back with it.
// Where lost, some of what was behind the position left the log, or the log was set back: list then begins behind from,
// which is another position. Else from is after, with the proof of the entry there, or with none where there is no entry; a
// proof in after has to be that. In doubt it says lost: a position whose entry is not there any more proves nothing about
// those that followed. Of large ones there may be fewer than count in list, though more follow.
func (b *Store) ReadFrom(ctx context.Context, partition int, after streamid.Position, count int) (from streamid.Position, lost bool, list []relay.Notification, err error) {
	key, id := b.keys.Log(partition), after.String()
	entries, err := b.readRange(ctx, key, id, count+1, maxReplyBytes)
	if err != nil {
		return streamid.Position{}, false, nil, wrapError("read the log", err)
	}
	from = streamid.Position{MS: after.MS, Seq: after.Seq}
	if len(entries) > 0 {
		if entries[0].id == id {
			list := notificationsOf(entries)
			if from, _ = streamid.ParseEntry(id, list[0].ID); !after.Matches(from) {
				return after.Predecessor(), true, list, nil // a failover has given the id to another
			}
			return from, false, list[1:], nil
		}
		if positionBefore(entries[0].id).Compare(after) == 0 {
			return from, false, notificationsOf(entries), nil
		}
	}
	info, err := b.streamInfo(ctx, key)
	if err != nil {
		return streamid.Position{}, false, nil, wrapError("find the beginning of the log", err)
	}
	last, _ := streamid.ParsePosition(info.lastID)
	order := last.Compare(after)
	switch {
	case order == 0:
		return from, false, nil, nil
	case id == zeroID && info.totalAdded >= 0 && info.totalAdded == info.length: // nothing has ever left it
		return from, false, notificationsOf(entries), nil
	case order < 0 || len(entries) == 0:
		return last, true, nil, nil
	default:
		return positionBefore(entries[0].id), true, notificationsOf(entries), nil
	}
}

// rangeChunk is how much of an answer is passed on at once.
const rangeChunk = 32 << 10

var errStopReading = errors.New("enough was read")

// readRange is an XRANGE up to the log's end. It takes the answer as it comes and ends it behind so many bytes, though not
// before the second entry.
func (b *Store) readRange(ctx context.Context, key, from string, count, most int) ([]rawEntry, error) {
	answer, feed := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		chunks := bufio.NewWriterSize(feed, rangeChunk)
		err := b.client.Process(ctx, redis.NewRawWriteToCmd(ctx, chunks, "XRANGE", key, from, "+", "COUNT", count))
		if err == nil {
			err = chunks.Flush()
		}
		_ = feed.CloseWithError(err)
	}()
	w := &respConn{reader: bufio.NewReaderSize(answer, rangeChunk)}
	entries, _, err := w.entriesWithin(most)
	_ = answer.CloseWithError(errStopReading) // the client gives up the connection where there was more
	<-done
	var refused serverError
	if errors.As(err, &refused) && isUnavailable(err) {
		reloadSlots(ctx, b.client) // the client has not looked into the answer
	}
	return entries, err
}

// positionBefore is the position right before an entry's.
func positionBefore(id string) streamid.Position {
	at, _ := streamid.ParsePosition(id)
	return at.Predecessor()
}
