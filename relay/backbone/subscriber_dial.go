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
	if err := w.greet(ctx, o); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return w, nil
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
