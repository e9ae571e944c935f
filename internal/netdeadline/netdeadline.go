// Package netdeadline ends the I/O of a connection with a context.
package netdeadline

import (
	"context"
	"errors"
	"net"
	"time"
)

// grace is the time after a deadline in which a response that has already arrived can still be read. A response that
// is discarded here was paid for: its request is repeated. It also covers a goroutine that a busy machine runs late.
const grace = 50 * time.Millisecond

// InterruptAfter ends all reads and writes of conn after ctx ends: at once if it was canceled. After its deadline,
// writes end at once and reads end 50 ms later. Then conn must be closed. The function that it returns undoes this, and
// returns false if ctx has ended.
//
// conn must be the connection below TLS, because a write deadline breaks the state of TLS. While ctx is active, others
// may set deadlines of conn.
func InterruptAfter(ctx context.Context, conn net.Conn) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) &&
			conn.SetWriteDeadline(time.Unix(1, 0)) == nil && conn.SetReadDeadline(time.Now().Add(grace)) == nil {
			return
		}
		_ = conn.Close()
	})
}

// Cause returns the cause of ctx if ctx has ended, and err, an error of I/O, otherwise. An I/O timeout at the deadline
// of ctx counts as the end of ctx, whose own timer may fire later.
func Cause(ctx context.Context, err error) error {
	var timeout net.Error
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) && errors.As(err, &timeout) && timeout.Timeout() {
		<-ctx.Done()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
