package resp

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// Timeout is the maximum time to connect, and the time for which the server may be silent before a reply.
const Timeout = 5 * time.Second

const readBuffer = 64 << 10

// NewConn returns a connection to a server that needs no authentication.
func NewConn(conn net.Conn) *Conn {
	conn = redisconn.WithIdleTimeout(conn)
	return &Conn{conn: conn, reader: bufio.NewReaderSize(conn, readBuffer), readTimeout: Timeout}
}

// NewDecoder returns a Conn that only reads replies from r. It must not send.
func NewDecoder(r io.Reader, buffer int) *Conn {
	return &Conn{reader: bufio.NewReaderSize(r, buffer)}
}

// Dial connects and authenticates with the options of a client.
func Dial(ctx context.Context, o *redis.Options) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	conn, err := o.Dialer(ctx, o.Network, o.Addr)
	if err != nil {
		return nil, err
	}
	c := NewConn(conn)
	stop := c.CloseAfter(ctx)
	if err := c.authenticateConn(ctx, o); err != nil {
		stop()
		_ = conn.Close()
		return nil, err
	}
	if !stop() {
		return nil, ctx.Err()
	}
	return c, nil
}

// Close closes the connection.
func (c *Conn) Close() error { return c.conn.Close() }

// CloseAfter closes the connection when ctx ends, which interrupts a read. The function that it returns undoes that,
// and returns false if ctx has ended.
func (c *Conn) CloseAfter(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = c.conn.Close() })
}

func (c *Conn) authenticateConn(ctx context.Context, o *redis.Options) error {
	user, password, err := resolveCredentials(ctx, o)
	if err != nil {
		return fmt.Errorf("get the credentials of redis: %w", err)
	}
	switch {
	case user != "":
		_, err = c.Call("AUTH", user, password)
	case password != "":
		_, err = c.Call("AUTH", password)
	}
	if err != nil {
		return err
	}
	if o.DB != 0 {
		if _, err := c.Call("SELECT", strconv.Itoa(o.DB)); err != nil {
			return err
		}
	}
	id, err := c.Call("CLIENT", "ID")
	if err != nil && redisconn.IsTransient(err) {
		return err
	}
	c.clientID = id
	return nil
}

func resolveCredentials(ctx context.Context, o *redis.Options) (user, password string, err error) {
	switch {
	case o.CredentialsProviderContext != nil:
		return o.CredentialsProviderContext(ctx)
	case o.CredentialsProvider != nil:
		user, password = o.CredentialsProvider()
		return user, password, nil
	}
	return o.Username, o.Password, nil
}
