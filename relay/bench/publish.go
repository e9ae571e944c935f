package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	publishTime  = 5 * time.Second
	batchSize    = 100
	batchConns   = 8
	singleConns  = 64
	floorConns   = 2
	notification = "notifications/s"
)

// measurePublish loads the publish endpoint with prebuilt requests on persistent connections.
func measurePublish(ctx context.Context, r *rig) ([]row, error) {
	if err := r.redis.flush(); err != nil {
		return nil, err
	}
	floor, err := r.pipelinedXADD(ctx)
	if err != nil {
		return nil, fmt.Errorf("pipelined XADD: %w", err)
	}
	var batches, singles float64
	err = r.runWithDaemon(ctx, "", func(d *daemon) error {
		lines := repeatBytes([]byte(event+"\n"), batchSize)
		batches, err = r.loadPublish(ctx, d, batchConns, newPublishRequest("application/x-ndjson", lines), batchSize)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("NDJSON: %w", err)
	}
	err = r.runWithDaemon(ctx, "", func(d *daemon) error {
		singles, err = r.loadPublish(ctx, d, singleConns, newPublishRequest("application/json", []byte(event)), 1)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("single POST: %w", err)
	}
	const baseline = "pipelined XADD of the same"
	return []row{
		newRow("publish, NDJSON of 100 a request", batches, notification, baseline, floor).atLeast(60_000),
		newRow("publish, one a request", singles, notification, baseline, floor).atLeast(8_000),
	}, nil
}

func newPublishRequest(contentType string, body []byte) []byte {
	return newRequest(path, benchKey, contentType, body)
}

func newRequest(path, credential, contentType string, body []byte) []byte {
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer %s\r\n"+
		"X-Hub-Id: %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n",
		path, credential, benchHub, contentType, len(body))
	return append([]byte(head), body...)
}

// loadPublish repeats a request with that many notifications on each connection, and returns the accepted
// notifications per second. It fails if the log does not have all of them.
func (r *rig) loadPublish(ctx context.Context, d *daemon, conns int, request []byte, each int) (float64, error) {
	requests, rate, err := runForAWhile(ctx, conns, func() (func() error, func(), error) {
		c, err := dialHTTP(d.listen)
		if err != nil {
			return nil, nil, err
		}
		return func() error { return c.postRequest(request) }, c.close, nil
	})
	if err != nil {
		return 0, err
	}
	client := redis.NewClient(&redis.Options{Addr: r.redis.address})
	defer func() { _ = client.Close() }()
	log, err := client.XInfoStream(ctx, "hubrelay:log:{0}").Result()
	if err != nil {
		return 0, fmt.Errorf("read the length of the log: %w", err)
	}
	if accepted := requests * int64(each); log.EntriesAdded != accepted {
		return 0, fmt.Errorf("%d notifications were accepted, but %d stored", accepted, log.EntriesAdded)
	}
	return rate * float64(each), nil
}

// pipelinedXADD appends the same payload, with the fields of the log, in pipelines of a hundred.
func (r *rig) pipelinedXADD(ctx context.Context) (float64, error) {
	one := appendCommand(nil, "XADD", "bench:floor", "*", "id", "5f0c8a7e9d3b2a1c4e6f8a92",
		"topic", "container.instance.state.changed",
		"hub", benchHub, "account", "5f0c8a7e9d3b2a1c4e6f8a91", "data", event)
	commands := repeatBytes(one, batchSize)
	_, rate, err := runForAWhile(ctx, floorConns, func() (func() error, func(), error) {
		c, err := r.redis.dial()
		if err != nil {
			return nil, nil, err
		}
		return func() error { return c.runPipeline(commands, batchSize) }, c.close, nil
	})
	return rate * batchSize, err
}

// runForAWhile repeats what open returns in n goroutines, and returns the number and the rate of successes.
func runForAWhile(
	ctx context.Context, n int, open func() (shot func() error, done func(), err error),
) (int64, float64, error) {
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	var (
		wg    sync.WaitGroup
		count atomic.Int64
	)
	failures := make(chan error, n)
	startedAt := time.Now()
	for range n {
		wg.Go(func() {
			shot, done, err := open()
			if err != nil {
				failures <- err
				return
			}
			defer done()
			for ctx.Err() == nil {
				if err := shot(); err != nil {
					failures <- err
					return
				}
				count.Add(1)
			}
		})
	}
	wg.Wait()
	rate := float64(count.Load()) / time.Since(startedAt).Seconds()
	select {
	case err := <-failures:
		return 0, 0, err
	default:
		return count.Load(), rate, nil
	}
}

// httpConn is the cheapest HTTP/1.1 client: it writes prebuilt bytes and skips response bodies.
type httpConn struct {
	conn net.Conn
	in   *bufio.Reader
}

func dialHTTP(address string) (*httpConn, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	return &httpConn{conn: conn, in: bufio.NewReaderSize(conn, 8<<10)}, nil
}

func (c *httpConn) close() { _ = c.conn.Close() }

func (c *httpConn) postRequest(request []byte) error {
	_ = c.conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.conn.Write(request); err != nil {
		return err
	}
	status, length, err := c.readHead()
	if err != nil {
		return fmt.Errorf("read the response of %s: %w", c.conn.RemoteAddr(), err)
	}
	if status != "202" {
		body, _ := io.ReadAll(io.LimitReader(c.in, max(0, length)))
		return fmt.Errorf("unexpected status %s: %s", status, body)
	}
	if length >= 0 {
		_, err = c.in.Discard(int(length))
		return err
	}
	return c.skipChunks()
}

// readHead reads a response up to the empty line. The length of a chunked body is -1.
func (c *httpConn) readHead() (status string, length int64, err error) {
	length = -1
	for first := true; ; first = false {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return "", 0, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if first {
			if len(line) < len("HTTP/1.1 202") {
				return "", 0, errors.New("the response is not HTTP/1.1")
			}
			status = string(line[9:12])
		}
		if len(line) == 0 {
			return status, length, nil
		}
		if value, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			if length, err = strconv.ParseInt(string(value), 10, 64); err != nil {
				return "", 0, err
			}
		}
	}
}

func (c *httpConn) skipChunks() error {
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return err
		}
		size, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 32)
		if err != nil {
			return err
		}
		if _, err := c.in.Discard(int(size) + len("\r\n")); err != nil || size == 0 {
			return err
		}
	}
}
