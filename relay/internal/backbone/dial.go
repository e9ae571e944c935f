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

const respTimeout = 5 * time.Second

func newRESPConn(conn net.Conn) *respConn {
	conn = withIdleTimeout(conn)
	return &respConn{conn: conn, reader: bufio.NewReaderSize(conn, 64<<10), readTimeout: respTimeout}
}

// dialRESP connects as the client o would.
func dialRESP(ctx context.Context, o *redis.Options) (*respConn, error) {
	ctx, cancel := context.WithTimeout(ctx, respTimeout)
	defer cancel()
	conn, err := o.Dialer(ctx, o.Network, o.Addr)
	if err != nil {
		return nil, err
	}
	w := newRESPConn(conn)
	stop := w.closeAfter(ctx)
	if err := w.authenticate(ctx, o); err != nil {
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
func (w *respConn) closeAfter(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = w.conn.Close() })
}

func (w *respConn) authenticate(ctx context.Context, o *redis.Options) error {
	user, password, err := respCredentials(ctx, o)
	if err != nil {
		return fmt.Errorf("get the credentials of redis: %w", err)
	}
	switch {
	case user != "":
		_, err = w.call("AUTH", user, password)
	case password != "":
		_, err = w.call("AUTH", password)
	}
	if err != nil {
		return err
	}
	if o.DB != 0 {
		if _, err := w.call("SELECT", strconv.Itoa(o.DB)); err != nil {
			return err
		}
	}
	id, err := w.call("CLIENT", "ID")
	if err != nil && isTransient(err) {
		return err
	}
	w.clientID = id
	return nil
}

func respCredentials(ctx context.Context, o *redis.Options) (user, password string, err error) {
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
