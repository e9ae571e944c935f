package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// redisServer is a redis-server on loopback with an append-only file that is synced every second.
type redisServer struct {
	socket  string
	address string // loopback
	cmd     *exec.Cmd
}

func startRedis(ctx context.Context, dir string) (*redisServer, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	s := &redisServer{socket: filepath.Join(dir, "redis.sock"), address: address}
	s.cmd = exec.CommandContext(ctx, "redis-server", "--bind", "127.0.0.1", "--port", port,
		"--unixsocket", s.socket, "--dir", dir, "--save", "", "--maxmemory-policy", "noeviction",
		"--appendonly", "yes", "--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0")
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start redis-server (make bench installs it): %w", err)
	}
	err = waitUntil(ctx, 10*time.Second, func() error {
		c, err := s.dial()
		if err != nil {
			return err
		}
		defer c.close()
		return c.runCommand("PING")
	})
	if err != nil {
		s.close()
		return nil, fmt.Errorf("wait for redis-server: %w", err)
	}
	return s, nil
}

func (s *redisServer) close() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// redisURL returns the address for the clients that are measured. They use TCP, like most installations.
func (s *redisServer) redisURL() string { return "redis://" + s.address }

// flush deletes all keys, so measurements do not affect each other.
func (s *redisServer) flush() error {
	c, err := s.dial()
	if err != nil {
		return err
	}
	defer c.close()
	return c.runCommand("FLUSHALL")
}

// redisConn writes prebuilt commands and counts replies, which is the minimum work of a client.
type redisConn struct {
	conn net.Conn
	in   *bufio.Reader
}

func (s *redisServer) dial() (*redisConn, error) {
	conn, err := net.Dial("unix", s.socket)
	if err != nil {
		return nil, err
	}
	return &redisConn{conn: conn, in: bufio.NewReaderSize(conn, 64<<10)}, nil
}

func (c *redisConn) close() { _ = c.conn.Close() }

func (c *redisConn) runCommand(args ...string) error {
	return c.runPipeline(appendCommand(nil, args...), 1)
}

// runPipeline sends n commands and reads their replies, each a line or a bulk string.
func (c *redisConn) runPipeline(commands []byte, n int) error {
	_ = c.conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.conn.Write(commands); err != nil {
		return err
	}
	for range n {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return err
		}
		switch line[0] {
		case '-':
			return fmt.Errorf("redis: %s", bytes.TrimSpace(line[1:]))
		case '$':
			size, err := strconv.Atoi(string(bytes.TrimSpace(line[1:])))
			if err != nil {
				return err
			}
			if _, err := c.in.Discard(size + 2); err != nil {
				return err
			}
		}
	}
	return nil
}

// appendCommand appends a command in the Redis protocol to b.
func appendCommand(b []byte, args ...string) []byte {
	b = fmt.Appendf(b, "*%d\r\n", len(args))
	for _, a := range args {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b
}

// waitUntil calls probe every few milliseconds until it succeeds or the time has ended.
func waitUntil(ctx context.Context, limit time.Duration, probe func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		err := probe()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (after %s)", err, limit)
		case <-tick.C:
		}
	}
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String(), nil
}

func writeFile(name, text string) error { return os.WriteFile(name, []byte(text), 0o600) }
