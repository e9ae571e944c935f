package ingest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// maxIdempotencyKey bounds an idempotency key, in bytes.
const maxIdempotencyKey = 255

// Log is where notifications go. Append stores all or nothing and returns the ids, those of the first time for a
// repeat. Its error is [eventlog.ErrKeyReused] or [redisconn.ErrUnavailable] where a caller can do something about it.
// It is called concurrently; *eventlog.Log is one.
type Log interface {
	Append(ctx context.Context, a eventlog.AppendRequest) ([]string, error)
}

// Publication is a request to publish, with what is known of its sender.
type Publication struct {
	// KeyName names the key that publishes. Idempotency keys are its own.
	KeyName string
	// Hub is X-Hub-Id, never empty.
	Hub string
	// Account is filled in where a notification names none; AnyAccount lets notifications name any.
	Account    string
	AnyAccount bool
	// ContentType and IdempotencyKey are the request's headers, empty where absent.
	ContentType    string
	IdempotencyKey string
	// Trace is the request's, passed on by notifications that have none of their own.
	Trace relay.Trace
	// Body is read until Publish returns, and not longer. Its size is bounded by the caller.
	Body []byte
}

// Publisher validates publications and stores them. It may be used concurrently.
type Publisher struct {
	decoder *Decoder
	log     Log
}

// NewPublisher returns a publisher that stores in log what decoder accepts.
func NewPublisher(decoder *Decoder, log Log) *Publisher {
	return &Publisher{decoder: decoder, log: log}
}

// Publish stores all notifications of p, or none, and returns their ids in order. Errors that the sender can act on are
// or wrap a *[relay.Error]; with 503.not-ready all or nothing was stored.
func (pub *Publisher) Publish(ctx context.Context, p Publication) ([]string, error) {
	if p.Hub == "" {
		return nil, relay.NewError(relay.CodeMissingArgument, "the header X-Hub-Id is missing: it names the hub to publish in")
	}
	if problem := checkIdempotencyKey(p.IdempotencyKey); p.IdempotencyKey != "" && problem != "" {
		return nil, relay.NewError(relay.CodeInvalidArgument, "the header Idempotency-Key "+problem)
	}
	ns, refused := pub.decoder.DecodeBody(p.ContentType, p.Body, Defaults{Hub: p.Hub, Account: p.Account, AnyAccount: p.AnyAccount, Trace: p.Trace})
	if refused != nil {
		return nil, refused
	}
	a := eventlog.AppendRequest{Hub: p.Hub, Notifications: ns}
	if p.IdempotencyKey != "" {
		a.Key = eventlog.HashScopedKey("http", p.KeyName, p.Hub, p.IdempotencyKey)
		a.Digest = requestDigest(p)
	}
	ids, err := pub.log.Append(ctx, a)
	if err != nil {
		return nil, clientError(err, p.IdempotencyKey != "")
	}
	return ids, nil
}

// clientError says what the sender can do about an error of the log, and keeps its cause for our own logs.
func clientError(err error, keyed bool) error {
	switch {
	case errors.Is(err, eventlog.ErrKeyReused):
		return relay.NewError(relay.CodeInvalidArgument,
			"this Idempotency-Key was used for other content within ten minutes; use a new key for every new request")
	case errors.Is(err, redisconn.ErrTooFewReplicas) && keyed:
		return fmt.Errorf("%w (%w)", relay.NewError(relay.CodeNotReady,
			"everything was stored, but on fewer replicas than redis.min_replicas asks for; repeat the request with the same Idempotency-Key, that waits for them again and stores nothing twice"), err)
	case errors.Is(err, redisconn.ErrTooFewReplicas):
		return fmt.Errorf("%w (%w)", relay.NewError(relay.CodeNotReady,
			"everything was stored, but on fewer replicas than redis.min_replicas asks for; a repeat would store it twice. Send an Idempotency-Key to make repeats safe"), err)
	case errors.Is(err, redisconn.ErrUnavailable) && keyed:
		return fmt.Errorf("%w (%w)", relay.NewError(relay.CodeNotReady,
			"the relay's Redis does not answer, and it may be that everything was stored; repeat the request with the same Idempotency-Key, that stores it once"), err)
	case errors.Is(err, redisconn.ErrUnavailable):
		return fmt.Errorf("%w (%w)", relay.NewError(relay.CodeNotReady,
			"the relay's Redis does not answer; nothing was stored, or, if the answer alone was lost, everything. Send an Idempotency-Key to make repeats safe"), err)
	default:
		return fmt.Errorf("publish: %w", err)
	}
}

// checkIdempotencyKey says what is wrong with an idempotency key, "" for nothing.
func checkIdempotencyKey(key string) string {
	if key == "" || len(key) > maxIdempotencyKey {
		return fmt.Sprintf("must have 1 to %d characters", maxIdempotencyKey)
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return "must have visible ASCII characters only"
		}
	}
	return ""
}

// requestDigest tells one request's content from another's. A charset makes no difference.
func requestDigest(p Publication) string {
	kind, _ := bodyFormatOf(p.ContentType) // the body was decoded, so that its kind is known
	h := sha256.New()
	h.Write([]byte(kind + "\n"))
	h.Write(p.Body)
	return hex.EncodeToString(h.Sum(nil))
}
