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

// redisServer is a redis-server on loopback that writes its append-only file every second.
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
	s.cmd = exec.CommandContext(ctx, "redis-server", "--bind", "127.0.0.1", "--port", port, "--unixsocket", s.socket, "--dir", dir, "--save", "",
		"--appendonly", "yes", "--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0", "--maxmemory-policy", "noeviction")
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start redis-server (make bench installs it): %w", err)
	}
	err = until(ctx, 10*time.Second, func() error {
		c, err := s.dial()
		if err != nil {
			return err
		}
		defer c.close()
		return c.do("PING")
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

// url is the address for clients that are measured: TCP, as most have it.
func (s *redisServer) url() string { return "redis://" + s.address }

// clear forgets everything, so that one measurement does not weigh on the next.
func (s *redisServer) clear() error {
	c, err := s.dial()
	if err != nil {
		return err
	}
	defer c.close()
	return c.do("FLUSHALL")
}

// redisConn writes prebuilt commands and counts replies: the least that a client can do.
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

func (c *redisConn) do(args ...string) error { return c.pipeline(command(nil, args...), 1) }

// pipeline sends commands, as many as n, and reads their replies: one line, or a bulk string.
func (c *redisConn) pipeline(commands []byte, n int) error {
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
			return fmt.Errorf("redis says %s", bytes.TrimSpace(line[1:]))
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

// command appends a command in Redis' protocol to b.
func command(b []byte, args ...string) []byte {
	b = fmt.Appendf(b, "*%d\r\n", len(args))
	for _, a := range args {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b
}

// until tries again every few milliseconds until probe succeeds or the time is over.
func until(ctx context.Context, limit time.Duration, probe func() error) error {
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
			return fmt.Errorf("%w, after %s", err, limit)
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
