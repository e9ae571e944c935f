package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"net"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/relay/internal/delivery/store"
	"github.com/redis/go-redis/v9"
)

// batchSealed is the number of scheduled deliveries per round, written in steps of parkStep.
const (
	batchSealed = 500
	parkStep    = 50
)

// newSealedBody returns a scheduled delivery of size notifications in the format of the daemon
// (relay/internal/delivery/store/encoding.go).
func newSealedBody(kind string, size int) string {
	about := ""
	switch kind {
	case "batch":
		about = `,"batch":true`
	case "digest":
		const day = "2026-11-22T05:00:00Z"
		about = fmt.Sprintf(`,"digest":{"count":%d,"first":%q,"last":%q,`+
			`"topics":{"container.instance.state.changed":%d}}`, size, day, day, size)
	}
	out := strings.Builder{}
	out.WriteString(`{"made":0,"attempts":[]` + about + "}\n")
	for i := range size {
		var one strings.Builder
		position := fmt.Sprintf("1763740000000-%d", i)
		for _, s := range []string{
			entryID, "container.instance.state.changed", benchHub, "5f0c8a7e9d3b2a1c4e6f8a91", position, event,
		} {
			fmt.Fprintf(&one, "%d:%s", len(s), s)
		}
		fmt.Fprintf(&out, "%d:%s", one.Len(), one.String())
	}
	return out.String()
}

// drainSealed schedules deliveries and lets the daemon deliver them.
func (r *rig) drainSealed(
	ctx context.Context, d *daemon, to target, client *redis.Client, body string,
) (drainResult, error) {
	if err := d.postAdmin(ctx, "sinks/hook/pause"); err != nil {
		return drainResult{}, err
	}
	if err := parkSealed(ctx, client, body); err != nil {
		return drainResult{}, err
	}
	resume := func() error { return d.postAdmin(ctx, "sinks/hook/resume") }
	return to.timeRequests(d.cmd.Process.Pid, batchSealed, resume, func() error {
		return waitUntil(ctx, 10*time.Second, func() error {
			n, err := client.ZCard(ctx, "hubrelay:retry:hook").Result()
			if err == nil && n > 0 {
				err = fmt.Errorf("%d scheduled retries are left", n)
			}
			return err
		})
	})
}

// parkSealed schedules deliveries that are due at once.
func parkSealed(ctx context.Context, client *redis.Client, body string) error {
	keys, err := keyspace.New("hubrelay", 1, false)
	if err != nil {
		return err
	}
	for first := 0; first < batchSealed; first += parkStep {
		_, err = client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i := range min(parkStep, batchSealed-first) {
				id, now := fmt.Sprintf("%024x", first+i), float64(time.Now().UnixMilli())
				pipe.HSet(ctx, store.RecordsKey(keys, "hook"), id, body)
				pipe.ZAdd(ctx, store.ArrivalKey(keys, "hook"), redis.Z{Score: now, Member: id})
				pipe.ZAdd(ctx, store.RetryKey(keys, "hook"), redis.Z{Score: now, Member: id})
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// playPoster measures the minimum cost of a signed request. It signs prepared bodies like a webhook and posts each
// with one write on a persistent connection, with one goroutine per connection and no HTTP client. It reads "POSTS
// SIZE", with the number of notifications per body, and prints "done" after the last response.
func playPoster(lines *bufio.Scanner, args []string) error {
	flags := flag.NewFlagSet("poster", flag.ContinueOnError)
	address := flags.String("address", "", "address to post to")
	posters := flags.Int("n", 0, "number of concurrent posts")
	if err := flags.Parse(args); err != nil {
		return err
	}
	debug.SetGCPercent(300) // like the daemon
	list := make([]*poster, *posters)
	for i := range list {
		conn, err := net.Dial("tcp", *address)
		if err != nil {
			return err
		}
		list[i] = &poster{conn: conn, address: *address}
	}
	fmt.Println("ready")
	for {
		command, err := readCommand(lines)
		if err != nil {
			return nil //nolint:nilerr // the input has ended
		}
		var posts, size int
		if _, err := fmt.Sscan(command, &posts, &size); err != nil {
			return err
		}
		body := event
		if size > 1 {
			body = "[" + strings.Repeat(event+",", size-1) + event + "]"
		}
		var left atomic.Int64
		left.Store(int64(posts))
		errs := make([]error, len(list))
		var all sync.WaitGroup
		for i, p := range list {
			all.Go(func() { errs[i] = p.run(&left, []byte(body)) })
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		fmt.Println("done")
	}
}

type poster struct {
	conn     net.Conn
	address  string
	response [4096]byte
}

func (p *poster) run(left *atomic.Int64, body []byte) error {
	const id, now = "5f0c8a7e9d3b2a1c4e6f8a92", "1763740000"
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(hookSecret, "whsec_"))
	if err != nil {
		return err
	}
	text := []byte(fmt.Sprintf("POST /hook HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"+
		"User-Agent: hubrelay\r\nwebhook-id: %s\r\nwebhook-timestamp: %s\r\n"+
		"Content-Length: %d\r\nwebhook-signature: v1,",
		p.address, id, now, len(body)))
	from := len(text)
	var sum [sha256.Size]byte
	text = append(text, make([]byte, base64.StdEncoding.EncodedLen(len(sum)))...)
	text = append(append(text, "\r\n\r\n"...), body...)
	mac, prefix := hmac.New(sha256.New, key), []byte(id+"."+now+".")
	for left.Add(-1) >= 0 {
		mac.Reset()
		mac.Write(prefix)
		mac.Write(body)
		base64.StdEncoding.Encode(text[from:], mac.Sum(sum[:0]))
		if _, err := p.conn.Write(text); err != nil {
			return err
		}
		n, err := p.conn.Read(p.response[:])
		if err != nil {
			return err
		}
		response := p.response[:n]
		if !bytes.HasPrefix(response, []byte("HTTP/1.1 200 ")) || !bytes.HasSuffix(response, []byte("\r\n\r\n")) {
			return fmt.Errorf("unexpected response of the receiver: %q", response)
		}
	}
	return nil
}
