package redisconn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"
)

var (
	// ErrUnavailable means that Redis is unreachable or does not accept writes now. The operation may have been
	// executed unless Redis itself rejected it.
	ErrUnavailable = errors.New("redis is not available")
	// ErrFull means that the memory of Redis has no room for the operation, which was not executed. It is always combined
	// with ErrUnavailable.
	ErrFull = errors.New("redis is full")
	// ErrTooFewReplicas means that a write is stored, but fewer replicas than [Options.MinReplicas] received it in
	// time. It is always combined with ErrUnavailable.
	ErrTooFewReplicas = errors.New("it is stored, but too few replicas have it; repeat the request later")
	// ErrSlotMoves means that a slot is between two servers of a cluster. The command that got this error changed
	// nothing. It is always combined with ErrUnavailable.
	ErrSlotMoves = errors.New("redis is moving a slot to another server; if this lasts, complete the resharding with " +
		"redis-cli --cluster fix")
	// ErrCredentials means that Redis rejected a command because of the user or the password of redis.url. It may be combined
	// with ErrUnavailable, because both may be changed while the relay runs.
	ErrCredentials = errors.New("redis rejects the user or the password; correct them in redis.url, or in Redis")
	// ErrUnexpectedReply means that a script returned a reply of the wrong shape.
	ErrUnexpectedReply = errors.New("redis sent an unexpected reply")
)

// unavailableError is ErrUnavailable for errors.Is and keeps the cause for logs. The state is ErrUnavailable, ErrFull,
// ErrSlotMoves or ErrCredentials.
type unavailableError struct {
	operation    string
	state, cause error
}

func (e *unavailableError) Error() string {
	return e.operation + ": " + e.state.Error() + ": " + e.cause.Error()
}

func (e *unavailableError) Unwrap() []error { return []error{ErrUnavailable, e.state, e.cause} }

// NewFullError returns an error for an operation that was not executed because the memory has no room. It wraps [ErrFull],
// [ErrUnavailable] and the cause.
func NewFullError(operation string, cause error) error {
	return &unavailableError{operation: operation, state: ErrFull, cause: cause}
}

func newUnavailableError(operation string, cause error) error {
	if errors.Is(cause, ErrUnavailable) {
		return cause
	}
	if IsOutOfMemory(cause) {
		return NewFullError(operation, cause)
	}
	state := ErrUnavailable
	switch text := cause.Error(); {
	case strings.Contains(text, "ASK "), strings.Contains(text, "TRYAGAIN"):
		state = ErrSlotMoves
	case isCredentialsError(cause):
		state = ErrCredentials
	}
	return &unavailableError{operation: operation, state: state, cause: cause}
}

// WrapError adds the operation to err, and [ErrUnavailable] if a later attempt may succeed. It returns nil for nil.
func WrapError(operation string, err error) error {
	if err == nil {
		return nil
	}
	if IsUnavailable(err) {
		return newUnavailableError(operation, err)
	}
	return fmt.Errorf("%s: %w", operation, err)
}

// IsUnavailable reports whether err is temporary: a network error, a server that loads its data, a failover, full memory, or
// rejected credentials.
func IsUnavailable(err error) bool {
	if errors.Is(err, ErrUnavailable) {
		return true
	}
	var reply redis.Error
	if errors.As(err, &reply) && !errors.Is(err, redis.ErrClosed) {
		return isTransientReply(reply.Error())
	}
	var network net.Error
	if errors.As(err, &network) {
		return true
	}
	for _, target := range []error{
		io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, os.ErrDeadlineExceeded, context.Canceled, context.DeadlineExceeded,
		redis.ErrPoolTimeout, redis.ErrPoolExhausted, redis.ErrClosed,
	} {
		if errors.Is(err, target) {
			return true
		}
	}
	return isClientError(err)
}

// isClientError reports whether go-redis failed before it sent a command: no Sentinel is reachable, the cluster has no nodes, or no
// connection is free.
func isClientError(err error) bool { return strings.HasPrefix(err.Error(), "redis: ") }

// IsConnectionLost reports whether the server may have failed during the operation. A replica that has become the primary since then
// may lack the latest writes.
func IsConnectionLost(err error) bool {
	if !errors.Is(err, ErrUnavailable) {
		return false
	}
	for _, reply := range []error{ErrFull, ErrSlotMoves, ErrTooFewReplicas, ErrCredentials} {
		if errors.Is(err, reply) {
			return false
		}
	}
	return true
}

// MayHaveRun reports whether Redis may have executed a failed operation, because the operation was sent and its reply was lost.
func MayHaveRun(err error) bool {
	var unavailable *unavailableError
	if !IsConnectionLost(err) || !errors.As(err, &unavailable) {
		return false
	}
	var reply redis.Error
	var network *net.OpError
	isReply := errors.As(unavailable.cause, &reply)
	isDial := errors.As(unavailable.cause, &network) && network.Op == "dial"
	return !isReply && !isDial && !isClientError(unavailable.cause)
}

// TransactionError returns the reply because of which Redis discarded a transaction, such as OOM, instead of EXECABORT.
// Any other error is returned unchanged.
func TransactionError(cmds []redis.Cmder, err error) error {
	if err == nil || !strings.HasPrefix(err.Error(), "EXECABORT") {
		return err
	}
	for _, cmd := range cmds {
		if cause := cmd.Err(); cause != nil && !strings.HasPrefix(cause.Error(), "EXECABORT") {
			return cause
		}
	}
	return err
}

// IsTransient reports whether the same command may succeed later. Unlike [IsUnavailable], it is true for every error
// that is not a reply of Redis.
func IsTransient(err error) bool {
	var reply redis.Error
	return !errors.As(err, &reply) || isTransientReply(reply.Error())
}

// isTransientReply searches the whole text, because the error of a script contains the error of its command.
func isTransientReply(text string) bool {
	if strings.HasPrefix(text, "EXECABORT") {
		return true // a command of the transaction was rejected, for the relay's commands by OOM, READONLY and the like
	}
	for _, code := range []string{
		"LOADING", "READONLY", "OOM ", "CLUSTERDOWN", "MASTERDOWN", "NOREPLICAS", "TRYAGAIN", "MOVED ", "ASK ",
		"MISCONF", "BUSY ", "UNBLOCKED", "max number of clients",
	} {
		if strings.Contains(text, code) {
			return true
		}
	}
	return isCredentialsReply(text)
}

// isCredentialsError reports whether err is a reply of a Redis that rejects the credentials.
func isCredentialsError(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply) && isCredentialsReply(reply.Error())
}

// isCredentialsReply compares only the start of a reply, which a script never wraps, because others can contain values of
// clients. Without credentials, Redis rejects a long command while it reads it ("unauthenticated multibulk length").
func isCredentialsReply(text string) bool {
	for _, start := range []string{
		"NOAUTH ", "WRONGPASS ", "ERR Protocol error: unauthenticated ", "ERR AUTH <password> called without any password",
	} {
		if strings.HasPrefix(text, start) {
			return true
		}
	}
	return false
}
