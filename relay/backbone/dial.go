package backbone

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

const wireTimeout = 5 * time.Second

func newWire(conn net.Conn) *wire {
	conn = patient(conn)
	return &wire{conn: conn, r: bufio.NewReaderSize(conn, 64<<10), patience: wireTimeout}
}

// dialWire connects as the client o would.
func dialWire(ctx context.Context, o *redis.Options) (*wire, error) {
	ctx, cancel := context.WithTimeout(ctx, wireTimeout)
	defer cancel()
	conn, err := o.Dialer(ctx, o.Network, o.Addr)
	if err != nil {
		return nil, err
	}
	w := newWire(conn)
	stop := w.closeAfter(ctx)
	if err := w.greet(ctx, o); err != nil {
		stop()
		_ = conn.Close()
		return nil, err
	}
	if !stop() {
		return nil, ctx.Err()
	}
	return w, nil
}

// closeAfter lets the end of ctx end whatever waits for the server. What it returns undoes that, and reports false where ctx
// has ended.
func (w *wire) closeAfter(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = w.conn.Close() })
}

func (w *wire) greet(ctx context.Context, o *redis.Options) error {
	user, password, err := wireCredentials(ctx, o)
	if err != nil {
		return fmt.Errorf("get the credentials of redis: %w", err)
	}
	switch {
	case user != "":
		_, err = w.do("AUTH", user, password)
	case password != "":
		_, err = w.do("AUTH", password)
	}
	if err != nil {
		return err
	}
	if o.DB != 0 {
		if _, err := w.do("SELECT", strconv.Itoa(o.DB)); err != nil {
			return err
		}
	}
	id, err := w.do("CLIENT", "ID")
	if err != nil && isTransient(err) {
		return err
	}
	w.id = id
	return nil
}

func wireCredentials(ctx context.Context, o *redis.Options) (user, password string, err error) {
	switch {
	case o.CredentialsProviderContext != nil:
		return o.CredentialsProviderContext(ctx)
	case o.CredentialsProvider != nil:
		user, password = o.CredentialsProvider()
		return user, password, nil
	}
	return o.Username, o.Password, nil
}

// nodeOf returns the client of the one server that holds the stream.
func nodeOf(ctx context.Context, c redis.UniversalClient, stream string) (*redis.Client, error) {
	switch c := c.(type) {
	case *redis.Client:
		return c, nil
	case *redis.ClusterClient:
		return c.MasterForKey(ctx, stream)
	}
	return nil, fmt.Errorf("streams are not read through a %T", c)
}
