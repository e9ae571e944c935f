package resp

import (
	"bufio"
	"context"
	"errors"
	"io"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// rangeBuffer is the number of bytes that the client passes on at once.
const rangeBuffer = 32 << 10

var errStopReading = errors.New("the rest of the reply is not needed")

// ReadEntriesBack returns up to count entries of a stream from end back to its beginning, see [ReadEntries]. end is as in
// XREVRANGE. It first checks that there is an entry up to end, because XREVRANGE would otherwise search the whole stream.
func ReadEntriesBack(
	ctx context.Context, client redis.UniversalClient, maxBytes int, key, end string, count int,
) ([]Entry, error) {
	if end != "+" {
		oldest, err := ReadEntries(ctx, client, maxBytes, "XRANGE", key, "-", end, "COUNT", 1)
		if err != nil || len(oldest) == 0 {
			return nil, err
		}
	}
	return ReadEntries(ctx, client, maxBytes, "XREVRANGE", key, end, "-", "COUNT", count)
}

// ReadEntries runs an XRANGE or XREVRANGE. It decodes the reply while it arrives, which is much faster than go-redis, and
// stops after maxBytes, but not before the second entry.
func ReadEntries(ctx context.Context, client redis.UniversalClient, maxBytes int, command ...any) ([]Entry, error) {
	reply, sink := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		w := bufio.NewWriterSize(sink, rangeBuffer)
		cmd := redis.NewRawWriteToCmd(ctx, w, command...)
		err := client.Process(ctx, cmd)
		if err == nil {
			err = w.Flush()
		}
		_ = sink.CloseWithError(err)
	}()
	entries, _, err := NewDecoder(reply, rangeBuffer).ReadEntries(maxBytes)
	_ = reply.CloseWithError(errStopReading) // the client closes the connection if the reply has more
	<-done
	var rejected ServerError
	if errors.As(err, &rejected) && redisconn.IsUnavailable(err) {
		redisconn.ReloadSlots(ctx, client) // the client has not seen the error
	}
	return entries, err
}
