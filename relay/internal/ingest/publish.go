package ingest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strconv"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
	"github.com/hubrelay/hubrelay/relay/internal/quota"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/storage"
)

// Log stores notifications. Append stores all or nothing and returns their IDs. For a repeated request it returns
// the IDs of the first. Its error wraps [eventlog.ErrKeyReused] or [redisconn.ErrUnavailable] if the caller can
// react to it. It may be called concurrently.
type Log interface {
	Append(ctx context.Context, a eventlog.AppendRequest) ([]string, error)
}

// Publication is a request to publish.
type Publication struct {
	// KeyName is the name of the API key. Idempotency keys belong to it and to the account, because external keys of several
	// accounts may have the same name.
	KeyName string
	// Owner is the name under which storage is limited: see [auth.Key.Owner].
	Owner string
	// Hub is the header X-Hub-Id. It is never empty.
	Hub string
	// Account is the default account of notifications. AnyAccount allows every account.
	Account    string
	AnyAccount bool
	// Topics are the topics that may be published. The zero value means all.
	Topics relay.Patterns
	// Address is the address of the client, or invalid. It has its own quota.
	Address netip.Addr
	// ContentType and IdempotencyKey are headers of the request. They are empty if missing.
	ContentType    string
	IdempotencyKey string
	// Trace is the trace of the request, the default for notifications without one.
	Trace relay.Trace
	// Body is used until Publish returns. The caller limits its size.
	Body []byte
}

// Quotas limits what a client publishes. Take returns a [*quota.ExceededError] if a limit is reached. Any other error
// means that the limits are unknown. It may be called concurrently.
type Quotas interface {
	Take(ctx context.Context, c quota.Client, a quota.Amount) error
}

// Room limits what publishers store. Its methods return the error for publishers beyond the limit. They are called concurrently
// and do not block.
type Room interface {
	// CheckPublisher reports whether a publisher may store anything.
	CheckPublisher(name string) error
	// TakeRoom counts bytes that a publisher is about to store.
	TakeRoom(name string, bytes int64) error
	// ReturnRoom subtracts bytes that were counted but not stored.
	ReturnRoom(name string, bytes int64)
}

type endlessRoom struct{}

func (endlessRoom) CheckPublisher(string) error  { return nil }
func (endlessRoom) TakeRoom(string, int64) error { return nil }
func (endlessRoom) ReturnRoom(string, int64)     {}

// PublisherOptions are the dependencies of a [Publisher]. Decoder and Log are required.
type PublisherOptions struct {
	Decoder *Decoder
	Log     Log
	// Quotas limits what clients publish. Nil sets no limit.
	Quotas Quotas
	// Room is the room in the storage. Nil means that there is always room.
	Room Room
	// IsLagging reports whether a reader of the log has lagged for a time. It may be nil.
	IsLagging func(span time.Duration) bool
	// HasReadOthers reports whether this node has read an event of another account within a time. It may be nil.
	HasReadOthers func(account string, within time.Duration) bool
	// Accepted is called with the topic of each stored notification, except for repeats. It is called concurrently and
	// does not block. It may be nil.
	Accepted func(topic string)
}

// largeBody is the size of bodies that wait for a processor before they are decoded. Hostile JSON needs 30 times as much
// memory as its text.
const largeBody = 32 << 10

// maxLag is the time for which a reader of the log may lag before a loud publisher is rejected. Otherwise the events of others
// would be late on streams and in sinks.
const maxLag = 250 * time.Millisecond

// Publisher validates and stores publications. It may be used concurrently.
type Publisher struct {
	opts PublisherOptions
	// decoding has an element for each large body that is being decoded.
	decoding chan struct{}
	loudness *loudness
}

// NewPublisher returns a publisher that stores what the decoder accepts in the log, within the quotas.
func NewPublisher(o PublisherOptions) *Publisher {
	if o.Room == nil {
		o.Room = endlessRoom{}
	}
	if o.IsLagging == nil {
		o.IsLagging = func(time.Duration) bool { return false }
	}
	if o.HasReadOthers == nil {
		o.HasReadOthers = func(string, time.Duration) bool { return false }
	}
	if o.Accepted == nil {
		o.Accepted = func(string) {}
	}
	return &Publisher{opts: o, decoding: make(chan struct{}, runtime.GOMAXPROCS(0)), loudness: newLoudness()}
}

func (pub *Publisher) decode(p Publication) ([]relay.Notification, *relay.Error) {
	if len(p.Body) > largeBody {
		pub.decoding <- struct{}{} // decoding never blocks, so this ends soon
		defer func() { <-pub.decoding }()
	}
	return pub.opts.Decoder.DecodeBody(p.ContentType, p.Body, Defaults{
		Hub: p.Hub, Account: p.Account, AnyAccount: p.AnyAccount, Trace: p.Trace,
	})
}

// Publish stores all notifications of p or none, and returns their IDs in order. An error that the sender can fix
// is or wraps a *[relay.Error]. After 503.not-ready either all or none were stored. Beyond a quota the error is a
// [*quota.ExceededError], and nothing was stored.
func (pub *Publisher) Publish(ctx context.Context, p Publication) ([]string, error) {
	if p.Hub == "" {
		return nil, relay.NewError(relay.CodeMissingArgument,
			"the header X-Hub-Id is missing; set it to the hub to publish to")
	}
	if problem := checkIdempotencyKey(p.IdempotencyKey); p.IdempotencyKey != "" && problem != "" {
		return nil, relay.NewError(relay.CodeInvalidArgument, "the header Idempotency-Key "+problem)
	}
	if err := pub.opts.Room.CheckPublisher(p.Owner); err != nil {
		return nil, err
	}
	hasOthers := !p.AnyAccount && pub.opts.HasReadOthers(p.Account, forgetAfter)
	if pub.loudness.countRequest(p.Owner, len(p.Body), hasOthers) && pub.opts.IsLagging(maxLag) {
		return nil, newLagError(p)
	}
	// The bytes count before they are decoded, because that is what invalid requests cost.
	if err := pub.takeQuota(ctx, p, quota.Amount{Bytes: int64(len(p.Body))}); err != nil {
		return nil, err
	}
	ns, rejected := pub.decode(p)
	if rejected != nil {
		return nil, rejected
	}
	if rejected := checkTopics(ns, p.Topics); rejected != nil {
		return nil, rejected
	}
	pub.loudness.countEvents(p.Owner, len(ns))
	if err := pub.takeQuota(ctx, p, quota.Amount{Count: int64(len(ns))}); err != nil {
		return nil, err
	}
	size := StoredSize(ns...)
	if p.IdempotencyKey != "" {
		size += eventlog.IdempotencyKeySize
	}
	if err := pub.opts.Room.TakeRoom(p.Owner, size); err != nil {
		return nil, err
	}
	a := eventlog.AppendRequest{
		Hub: p.Hub, Notifications: ns, Publisher: eventlog.Publisher{Kind: eventlog.PublishedByKey, Name: p.KeyName},
	}
	if p.IdempotencyKey != "" {
		a.Key = eventlog.HashScopedKey(p.KeyName, p.Hub, p.IdempotencyKey)
		a.Client = clientOf(p)
		a.Digest = requestDigest(p)
	}
	ids, err := pub.opts.Log.Append(ctx, a)
	// A repeated request returns the IDs of the first one and stores nothing.
	isRepeat := err == nil && ids[0] != ns[0].ID
	if isRepeat || errors.Is(err, eventlog.ErrKeyReused) {
		pub.opts.Room.ReturnRoom(p.Owner, size)
	}
	switch {
	case err != nil:
		return nil, clientError(err, p.IdempotencyKey != "")
	case isRepeat:
		return ids, nil
	}
	for i := range ns {
		pub.opts.Accepted(ns[i].Topic)
	}
	return ids, nil
}

// checkTopics returns 403.permissions if a topic may not be published.
func checkTopics(ns []relay.Notification, allowed relay.Patterns) *relay.Error {
	for i := range ns {
		if err := RequireTopic(allowed, ns[i].Topic); err != nil {
			return err
		}
	}
	return nil
}

// RequireTopic returns 403.permissions unless topic is one of the topics that a key may publish.
func RequireTopic(allowed relay.Patterns, topic string) *relay.Error {
	if allowed.Match(topic) {
		return nil
	}
	return relay.NewError(relay.CodePermissions, "the key may publish only the topics "+
		relay.Truncate(allowed.String(), 200)+", not "+strconv.Quote(topic)).
		WithExtra("capability", "notifications-publish")
}

func (pub *Publisher) takeQuota(ctx context.Context, p Publication, a quota.Amount) error {
	if pub.opts.Quotas == nil {
		return nil
	}
	err := pub.opts.Quotas.Take(ctx, quota.Client{Key: p.KeyName, Account: p.Account, Address: p.Address}, a)
	switch {
	case redisconn.IsOutOfMemory(err):
		return newFullError(err)
	case errors.Is(err, redisconn.ErrUnavailable):
		advice := "repeat the request. Send an Idempotency-Key to make repeats safe"
		if p.IdempotencyKey != "" {
			advice = "repeat the request with the same Idempotency-Key"
		}
		return fmt.Errorf("%w (%w)",
			relay.NewError(relay.CodeNotReady, "Redis does not respond, and nothing was stored; "+advice), err)
	}
	return err
}

func newFullError(cause error) error {
	return fmt.Errorf("%w (%w)", storage.NewFullError("the storage of the relay is full"), cause)
}

// clientError converts an error of the log for the client, with advice. It keeps the cause for the log.
func clientError(err error, keyed bool) error {
	switch {
	case redisconn.IsOutOfMemory(err):
		return newFullError(err)
	case errors.Is(err, eventlog.ErrKeyReused):
		return relay.NewError(relay.CodeInvalidArgument,
			"this Idempotency-Key was used for other content within ten minutes; use a new key for each new request")
	case errors.Is(err, redisconn.ErrTooFewReplicas) && keyed:
		return fmt.Errorf("%w (%w)", relay.NewError(relay.CodeNotReady,
			"everything was stored, but on fewer replicas than redis.min_replicas; repeat the request with the "+
				"same Idempotency-Key to wait for them again, nothing is stored twice"), err)
	case errors.Is(err, redisconn.ErrTooFewReplicas):
		return fmt.Errorf("%w (%w)", relay.NewError(relay.CodeNotReady,
			"everything was stored, but on fewer replicas than redis.min_replicas; a repeat would store it "+
				"twice. Send an Idempotency-Key to make repeats safe"), err)
	case errors.Is(err, redisconn.ErrUnavailable) && keyed:
		return fmt.Errorf("%w (%w)", relay.NewError(relay.CodeNotReady,
			"Redis does not respond, and everything or nothing was stored; repeat the request with the same "+
				"Idempotency-Key to store it once"), err)
	case errors.Is(err, redisconn.ErrUnavailable):
		return fmt.Errorf("%w (%w)", relay.NewError(relay.CodeNotReady,
			"Redis does not respond, and everything or nothing was stored. Send an Idempotency-Key to make "+
				"repeats safe"), err)
	default:
		return fmt.Errorf("publish: %w", err)
	}
}

// entryOverhead is about the memory of an entry of the log without its data, in bytes.
const entryOverhead = 256

// StoredSize returns about the memory that notifications take in the log, in bytes.
func StoredSize(ns ...relay.Notification) (size int64) {
	for i := range ns {
		size += int64(len(ns[i].Data)) + entryOverhead
	}
	return size
}

func kindOf(p Publication) quota.Kind {
	if p.Account == "" || p.AnyAccount {
		return quota.KindKey
	}
	return quota.KindAccount
}

// newLagError rejects a request of a loud publisher.
func newLagError(p Publication) *relay.Error {
	kind := string(kindOf(p))
	return relay.NewError(relay.CodeRateLimiting, "the streams or deliveries of the relay lag, and the "+p.Owner+
		" published more than the average; nothing was stored, try again in 1 s").WithExtra("per", kind)
}
