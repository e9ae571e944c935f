package embeddedredis

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	callTimeout = 5 * time.Second
	maxReply    = 1 << 20 // bytes, and elements of an array
)

// call sends one command over a new connection. The elements of an array are joined with newlines. For an error
// reply, it returns both the text and an error.
func call(ctx context.Context, socket string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := conn.Write([]byte(b.String())); err != nil {
		return "", err
	}
	return readReply(bufio.NewReader(conn), 0)
}

// readReply decodes one RESP2 reply.
func readReply(r *bufio.Reader, depth int) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimRight(line, "\r\n")
	if line == "" {
		return "", errors.New("empty reply")
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '+', ':':
		return rest, nil
	case '-':
		return rest, errors.New(rest)
	}
	n, err := strconv.Atoi(rest)
	if err != nil || n > maxReply || depth > 4 {
		return "", fmt.Errorf("not a reply of redis: %.40q", line)
	}
	switch {
	case n < 0:
		return "", nil
	case kind == '$':
		buf := make([]byte, n+2)
		if _, err := io.ReadFull(r, buf); err != nil {
			return "", err
		}
		return string(buf[:n]), nil
	case kind == '*':
		var parts []string
		for range n {
			part, err := readReply(r, depth+1)
			if err != nil {
				return part, err
			}
			parts = append(parts, part)
		}
		return strings.Join(parts, "\n"), nil
	}
	return "", fmt.Errorf("not a reply of redis: %.40q", line)
}

// isEOF reports whether the server closed the connection instead of replying, as it does after SHUTDOWN.
func isEOF(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
