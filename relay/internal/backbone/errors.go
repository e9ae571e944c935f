package backbone

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"
)

var (
	// ErrUnavailable means that Redis is away or takes no writes for now. Whether the operation took place is in doubt
	// unless Redis itself refused it; a repeat with the same Key is safe.
	ErrUnavailable = errors.New("redis is not available")
	// ErrTooFewReplicas means that everything was stored, but that fewer replicas than [Options.MinReplicas] had got it in
	// time. It comes with ErrUnavailable; a repeat with the same Key waits again and stores nothing twice.
	ErrTooFewReplicas = errors.New("too few replicas have it")
	// ErrKeyReused means that an idempotency key was used before with another body.
	ErrKeyReused = errors.New("the idempotency key was used before with a different body")
)

// unavailableError keeps the cause for logs and is ErrUnavailable to errors.Is.
type unavailableError struct {
	operation string
	cause     error
}

func (e *unavailableError) Error() string {
	return e.operation + ": " + ErrUnavailable.Error() + ": " + e.cause.Error()
}
func (e *unavailableError) Unwrap() []error { return []error{ErrUnavailable, e.cause} }

func newUnavailableError(doing string, cause error) error {
	if errors.Is(cause, ErrUnavailable) {
		return cause
	}
	return &unavailableError{operation: doing, cause: cause}
}

// WrapError returns err with what was being done, as all methods of a [Store] do: it is [ErrUnavailable] where another
// moment may mend it. It is for the stores beside this package.
func WrapError(doing string, err error) error { return wrapError(doing, err) }

// wrapError says what was being done, and marks with ErrUnavailable what another moment may mend.
func wrapError(doing string, err error) error {
	if err == nil {
		return nil
	}
	if isUnavailable(err) {
		return newUnavailableError(doing, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// isUnavailable tells what passes (network, LOADING, failover, out of memory) from what does not.
func isUnavailable(err error) bool {
	if errors.Is(err, ErrUnavailable) {
		return true
	}
	var answer redis.Error
	if errors.As(err, &answer) && !errors.Is(err, redis.ErrClosed) {
		return isTransientReply(answer.Error())
	}
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) || errors.Is(err, redis.ErrClosed) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
		strings.HasPrefix(err.Error(), "redis: ") // all of Sentinel unreachable, a cluster without nodes
}

// isTransientReply looks anywhere in the text, since a script's error carries its cause's inside.
func isTransientReply(answer string) bool {
	if strings.HasPrefix(answer, "EXECABORT") {
		return true // a command of the transaction was refused, which for ours means OOM, READONLY and their like
	}
	for _, code := range []string{
		"LOADING", "READONLY", "OOM ", "CLUSTERDOWN", "MASTERDOWN", "NOREPLICAS", "TRYAGAIN", "MOVED ", "ASK ", "MISCONF", "BUSY ",
		"UNBLOCKED", "max number of clients",
	} {
		if strings.Contains(answer, code) {
			return true
		}
	}
	return false
}

func randomHex() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails, by its documentation
	return hex.EncodeToString(b[:])
}
