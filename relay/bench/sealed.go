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

// batchSealed is how many deliveries are parked for a round, at most parkStep in one go.
const (
	batchSealed = 500
	parkStep    = 50
)

// sealedBody is a parked delivery of so many notifications, as the daemon parks it (relay/internal/delivery/store/encoding.go).
func sealedBody(kind string, size int) string {
	about := ""
	switch kind {
	case "batch":
		about = `,"batch":true`
	case "digest":
		const day = "2026-11-22T05:00:00Z"
		about = fmt.Sprintf(`,"digest":{"count":%d,"first":%q,"last":%q,"topics":{"container.instance.state.changed":%d}}`, size, day, day, size)
	}
	out := strings.Builder{}
	out.WriteString(`{"made":0,"attempts":[]` + about + "}\n")
	for i := range size {
		var one strings.Builder
		for _, s := range []string{entryID, "container.instance.state.changed", benchHub, "5f0c8a7e9d3b2a1c4e6f8a91", fmt.Sprintf("1763740000000-%d", i), event} {
			fmt.Fprintf(&one, "%d:%s", len(s), s)
		}
		fmt.Fprintf(&out, "%d:%s", one.Len(), one.String())
	}
	return out.String()
}

// drainSealed parks deliveries and lets the daemon work them off.
func (r *rig) drainSealed(ctx context.Context, d *daemon, to target, client *redis.Client, body string) (drained, error) {
	if err := d.operate(ctx, "sinks/hook/pause"); err != nil {
		return drained{}, err
	}
	if err := parkSealed(ctx, client, body); err != nil {
		return drained{}, err
	}
	return to.timed(d.cmd.Process.Pid, batchSealed, func() error { return d.operate(ctx, "sinks/hook/resume") }, func() error {
		return until(ctx, 10*time.Second, func() error {
			n, err := client.ZCard(ctx, "hubrelay:retry:hook").Result()
			if err == nil && n > 0 {
				err = fmt.Errorf("%d are parked", n)
			}
			return err
		})
	})
}

// parkSealed parks deliveries that are due at once.
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

// playPoster is what a signed post costs at least: bodies that are there already are signed as webhooks are, and posted in
// one write over connections that stay, by one goroutine each, with no HTTP client. It is told "POSTS SIZE", the number of
// notifications in a body, and prints "done" when all are answered.
func playPoster(lines *bufio.Scanner, args []string) error {
	flags := flag.NewFlagSet("poster", flag.ContinueOnError)
	address := flags.String("address", "", "where to post")
	posters := flags.Int("n", 0, "how many post at once")
	if err := flags.Parse(args); err != nil {
		return err
	}
	debug.SetGCPercent(300) // as serve does
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
		told, err := heard(lines)
		if err != nil {
			return nil //nolint:nilerr // that was all
		}
		var posts, size int
		if _, err := fmt.Sscan(told, &posts, &size); err != nil {
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
	conn    net.Conn
	address string
	answer  [4096]byte
}

func (p *poster) run(left *atomic.Int64, body []byte) error {
	const id, now = "5f0c8a7e9d3b2a1c4e6f8a92", "1763740000"
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(hookSecret, "whsec_"))
	if err != nil {
		return err
	}
	text := []byte(fmt.Sprintf("POST /hook HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nUser-Agent: hubrelay\r\nwebhook-id: %s\r\nwebhook-timestamp: %s\r\nContent-Length: %d\r\nwebhook-signature: v1,",
		p.address, id, now, len(body)))
	from := len(text)
	var sum [sha256.Size]byte
	text = append(append(append(text, make([]byte, base64.StdEncoding.EncodedLen(len(sum)))...), "\r\n\r\n"...), body...)
	mac, prefix := hmac.New(sha256.New, key), []byte(id+"."+now+".")
	for left.Add(-1) >= 0 {
		mac.Reset()
		mac.Write(prefix)
		mac.Write(body)
		base64.StdEncoding.Encode(text[from:], mac.Sum(sum[:0]))
		if _, err := p.conn.Write(text); err != nil {
			return err
		}
		n, err := p.conn.Read(p.answer[:])
		if err != nil {
			return err
		}
		if !bytes.HasPrefix(p.answer[:n], []byte("HTTP/1.1 200 ")) || !bytes.HasSuffix(p.answer[:n], []byte("\r\n\r\n")) {
			return fmt.Errorf("the receiver answered %q", p.answer[:n])
		}
	}
	return nil
}
