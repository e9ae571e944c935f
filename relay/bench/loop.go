package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	loopStream = "bench:loop"
	loopBatch  = 256
)

// playLoop is the bare loop that webhooks are compared with. It reads a stream in batches, posts each entry in one of
// several goroutines, and acknowledges and deletes in batches. It has no signatures, retries or metrics. For each
// input line, it processes the complete stream and prints "done".
func playLoop(lines *bufio.Scanner, args []string) error {
	flags := flag.NewFlagSet("loop", flag.ContinueOnError)
	address := flags.String("redis", "", "address of Redis")
	url := flags.String("url", "", "URL to post to")
	posters := flags.Int("n", 0, "number of concurrent posts")
	if err := flags.Parse(args); err != nil {
		return err
	}
	debug.SetGCPercent(300) // like the daemon
	l := loop{
		client:    redis.NewClient(&redis.Options{Addr: *address}),
		transport: &http.Transport{MaxIdleConnsPerHost: *posters},
		url:       *url,
	}
	defer func() { _ = l.client.Close() }()
	fmt.Println("ready")
	for lines.Scan() {
		if err := l.run(context.Background(), *posters); err != nil {
			return err
		}
		fmt.Println("done")
	}
	return nil
}

type loop struct {
	client    *redis.Client
	transport *http.Transport
	url       string
}

// run ends when the stream is empty and all entries are acknowledged.
func (l *loop) run(ctx context.Context, posters int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work, posted := make(chan redis.XMessage, loopBatch), make(chan string, loopBatch)
	var posting, acking sync.WaitGroup
	for range posters {
		posting.Go(func() {
			for m := range work {
				if err := l.postEntry(ctx, m); err != nil {
					cancel(err)
					return
				}
				posted <- m.ID
			}
		})
	}
	acking.Go(func() {
		if err := l.ackEntries(ctx, posted); err != nil {
			cancel(err)
			for range posted { // unblocks the goroutines that post
			}
		}
	})
	err := l.readStream(ctx, work)
	close(work)
	posting.Wait()
	close(posted)
	acking.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

func (l *loop) readStream(ctx context.Context, work chan<- redis.XMessage) error {
	for {
		got, err := l.client.XReadGroup(ctx, &redis.XReadGroupArgs{
			Group: group, Consumer: "bench", Streams: []string{loopStream, ">"}, Count: loopBatch, Block: -1,
		}).Result()
		if err == redis.Nil { //nolint:errorlint // go-redis does not wrap it
			return nil
		}
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		for _, m := range got[0].Messages {
			select {
			case work <- m:
			case <-ctx.Done():
				return nil
			}
		}
	}
}

func (l *loop) postEntry(ctx context.Context, m redis.XMessage) error {
	body, _ := m.Values["data"].(string)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := l.transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("post: %w", err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("post: %s", resp.Status)
	}
	return nil
}

// ackEntries acknowledges up to 256 entries at a time, at least every five milliseconds, like the daemon.
func (l *loop) ackEntries(ctx context.Context, posted <-chan string) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	ids := make([]string, 0, loopBatch)
	for more := true; more; {
		select {
		case id, ok := <-posted:
			if more = ok; ok {
				ids = append(ids, id)
			}
			if more && len(ids) < loopBatch {
				continue
			}
		case <-tick.C:
		}
		if len(ids) == 0 {
			continue
		}
		pipe := l.client.Pipeline()
		pipe.XDel(ctx, loopStream, ids...)
		pipe.XAck(ctx, loopStream, group, ids...)
		if _, err := pipe.Exec(ctx); err != nil {
			return fmt.Errorf("ack: %w", err)
		}
		ids = ids[:0]
	}
	return nil
}
