package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sync/errgroup"
)

// playClients opens many connections and counts the received frames. It is cheap because the sockets are outside Go's
// poller and are drained every 50 ms. It prints "ready". On "report" it prints "FRAMES BYTES" of all clients so far,
// on "fewest" the minimum number of frames per client, and on "pinged" the minimum number of pings. With -watch, it
// reads each frame at once, and on "p99" it prints the 99th percentile of the latencies, in nanoseconds, since the
// last "p99".
func playClients(lines *bufio.Scanner, args []string) error {
	flags := flag.NewFlagSet("clients", flag.ContinueOnError)
	address := flags.String("address", "", "address to connect to")
	n := flags.Int("n", 0, "number of clients")
	plain := flags.Bool("plain", false, "skip the websocket handshake")
	hubs := flags.Int("hubs", 1, "number of hubs of the clients")
	drainInterval := flags.Duration("often", 50*time.Millisecond, "interval of draining the sockets")
	watch := flags.Bool("watch", false, "drain the sockets as soon as data arrives")
	deflate := flags.Bool("deflate", false, "request compressed messages")
	more := flags.String("more", "", "text to append to the query")
	if err := flags.Parse(args); err != nil {
		return err
	}
	all := make([]*client, *n)
	connecting, _ := errgroup.WithContext(context.Background())
	connecting.SetLimit(maxConnecting)
	for i := range all {
		connecting.Go(func() error {
			var err error
			options := connectOptions{hub: hubName(i % *hubs), more: *more, plain: *plain, deflate: *deflate}
			if all[i], err = connect(*address, options); err != nil {
				return fmt.Errorf("client %d: %w", i+1, err)
			}
			return nil
		})
	}
	if err := connecting.Wait(); err != nil {
		return err
	}
	fmt.Println("ready")

	commands := make(chan string)
	go func() {
		defer close(commands)
		for lines.Scan() {
			commands <- lines.Text()
		}
	}()
	if *watch {
		return watchAll(all, commands)
	}
	tick := time.NewTicker(*drainInterval)
	defer tick.Stop()
	buf := make([]byte, 256<<10)
	for {
		what := ""
		select {
		case <-tick.C:
		case word, more := <-commands:
			if !more {
				return nil
			}
			what = word
		}
		for i, c := range all {
			if err := c.drainSocket(buf); err != nil {
				return fmt.Errorf("client %d: %w", i+1, err)
			}
		}
		printReport(what, all)
	}
}

// printReport prints the response to a command, if there is one.
func printReport(what string, all []*client) {
	switch what {
	case "":
	case "fewest":
		fmt.Println(minOf(all, func(c *client) int { return c.frames }))
	case "pinged":
		fmt.Println(minOf(all, func(c *client) int { return c.pings }))
	default:
		var frames, size int
		for _, c := range all {
			frames += c.frames
			size += c.bytes
		}
		fmt.Println(frames, size)
	}
}

func minOf(all []*client, of func(*client) int) int {
	least := of(all[0])
	for _, c := range all {
		least = min(least, of(c))
	}
	return least
}

// maxConnecting is the number of clients that connect concurrently.
const maxConnecting = 16

// hubName returns the name of hub i. Hub 0 is benchHub.
func hubName(i int) string {
	if i == 0 {
		return benchHub
	}
	return "hub-" + strconv.Itoa(i)
}

// client is a connection that counts complete text frames and responds to pings.
type client struct {
	fd            int
	frames, bytes int
	pings         int

	header []byte // of the current frame, up to ten bytes
	skip   int    // remaining bytes of its payload

	lateness *[]time.Duration // latencies of stamped frames, owned by the watcher; nil without a watcher
}

// connectOptions describes the connection of a client.
type connectOptions struct {
	hub   string
	more  string // appended to the query
	plain bool   // no websocket handshake

	deflate bool // ask for compressed messages
}

func connect(address string, to connectOptions) (*client, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	var early []byte
	if !to.plain {
		if early, err = upgradeWebSocket(conn, address, to); err != nil {
			return nil, err
		}
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil, errors.New("not a TCP connection")
	}
	file, err := tcp.File() // a second descriptor, outside the poller
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	fd, err := syscall.Dup(int(file.Fd()))
	if err != nil {
		return nil, err
	}
	c := &client{fd: fd, header: make([]byte, 0, 10)}
	return c, c.countFrames(early)
}

// upgradeWebSocket gets a token and opens the websocket. It returns the bytes after the handshake.
func upgradeWebSocket(conn net.Conn, address string, to connectOptions) ([]byte, error) {
	token, err := requestToken(address, to.hub)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	extension := ""
	if to.deflate {
		extension = "Sec-WebSocket-Extensions: permessage-deflate\r\n"
	}
	_, err = fmt.Fprintf(conn, "GET %s?token=%s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n%s\r\n",
		path, token+to.more, address, extension)
	if err != nil {
		return nil, err
	}
	var got []byte
	buf := make([]byte, 4<<10)
	for {
		n, err := conn.Read(buf)
		got = append(got, buf[:n]...)
		if head, rest, ok := bytes.Cut(got, []byte("\r\n\r\n")); ok {
			if !bytes.HasPrefix(head, []byte("HTTP/1.1 101 ")) {
				return nil, fmt.Errorf("upgrade websocket: got %q", got)
			}
			return rest, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func requestToken(address, hub string) (string, error) {
	req, err := http.NewRequest(http.MethodGet, "http://"+address+path, http.NoBody)
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+benchKey)
	req.Header.Set("X-Hub-Id", hub)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	var response struct{ Data struct{ Token string } }
	if err := json.Unmarshal(body, &response); err != nil || response.Data.Token == "" {
		return "", fmt.Errorf("get token: %s %s", resp.Status, body)
	}
	return response.Data.Token, nil
}

// pong is a masked pong frame without a payload.
var pong = []byte{0x8a, 0x80, 1, 2, 3, 4}

// drainSocket reads everything in the socket and responds to pings.
func (c *client) drainSocket(buf []byte) error {
	for {
		n, errno := receive(c.fd, buf)
		switch {
		case errno == syscall.EAGAIN:
			return nil
		case errno == syscall.EINTR:
			continue
		case errno != 0:
			return errno
		case n == 0:
			return io.ErrUnexpectedEOF
		}
		pings := c.pings
		if err := c.countFrames(buf[:n]); err != nil {
			return err
		}
		for range c.pings - pings {
			if err := syscall.Sendto(c.fd, pong, syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL, nil); err != nil {
				return err
			}
		}
		if n < len(buf) {
			return nil
		}
	}
}

// receive reads without waiting. A raw system call avoids the overhead of Go's scheduler.
func receive(fd int, buf []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&buf[0])),
		uintptr(len(buf)), syscall.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}

// countFrames parses frames (RFC 6455, section 5.2). Frames of a server are not masked.
func (c *client) countFrames(b []byte) error {
	for len(b) > 0 {
		if c.skip > 0 {
			n := min(c.skip, len(b))
			c.skip -= n
			b = b[n:]
			continue
		}
		c.header = append(c.header, b[0])
		b = b[1:]
		if len(c.header) < 2 {
			continue
		}
		length, size := int(c.header[1]), 2
		switch c.header[1] {
		case 126:
			size = 4
		case 127:
			size = 10
		}
		if len(c.header) < size {
			continue
		}
		if size > 2 {
			length = 0
			for _, d := range c.header[2:] {
				length = length<<8 | int(d)
			}
		}
		switch c.header[0] {
		case 0x81, 0xc1: // text, or compressed text
			c.frames++
			c.bytes += size + length
		case 0x89:
			c.pings++
		case 0x88:
			return errors.New("the relay closed the connection")
		}
		if c.lateness != nil && len(b) >= length { // true for almost all frames
			if late, ok := latencyOf(b[:length], time.Now()); ok {
				*c.lateness = append(*c.lateness, late)
			}
		}
		c.skip, c.header = length, c.header[:0]
	}
	return nil
}
