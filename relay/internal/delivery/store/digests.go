package store

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

const (
	// maxDigestBytes limits the listed notifications of a digest, each of up to 256 KiB.
	maxDigestBytes = 4 << 20
	// digestDedupSize is the number of notification IDs that an open digest keeps, so it counts nothing twice. Only
	// notifications that were not acked arrive again, which are those in progress on the nodes.
	digestDedupSize = 4096
	// claimLost is the result of digest_add.lua if another node has claimed the delivery.
	claimLost = -2
)

var (
	//go:embed scripts/digest_add.lua
	addToDigestSource string
	//go:embed scripts/digest_seal.lua
	sealDigestSource string

	//go:embed scripts/digest_seal_within.lua
	sealWithinSource string

	addToDigestScript = redisconn.NewScript(retryQueueSource + addToDigestSource)
	sealWithinScript  = redisconn.NewScript(sealWithinSource)
)

// The keys of [relay.Digest.Shared].
const (
	SharedTopic   = "topic"
	SharedHub     = "hub"
	SharedCluster = "cluster"
	SharedAccount = "account"
)

// Digests stores open digests.
type Digests struct{ db }

// DigestEntry is a notification for a digest.
type DigestEntry struct {
	Notification relay.Notification
	// Group identifies the digest. Shared contains the values that its notifications have in common, without empty
	// ones.
	Group  string
	Shared map[string]string
	// MaxListed is the number of notifications that the digest lists. It counts the others.
	MaxListed int
	// Wait is the time until a new digest is sealed.
	Wait      time.Duration
	ArrivedAt time.Time
	// LeaseEnd is that of the claim if the notification was scheduled, and otherwise empty.
	LeaseEnd string
	// MaxBacklog limits open digests plus scheduled deliveries when a digest is opened. 0 means no limit.
	MaxBacklog int64
	// MaxBytes limits the estimated memory of all open digests of the sink together, in bytes. Above it, no digest is opened, and the
	// open ones only count further notifications, and may count one twice that is added again after a failure. 0 means no limit.
	MaxBytes int64
	// OnlyIfWaiting adds the notification only if something of the sink is due or another digest is open.
	OnlyIfWaiting bool
}

// AddedToDigest is the result of adding a notification.
type AddedToDigest struct {
	// Done is set if nothing is left to do: the notification was added, or its claim was lost.
	Done bool
	// SealAfter is the time until the digest is sealed. IsNew is set if that time was set by this call.
	SealAfter time.Duration
	IsNew     bool
}

// Add adds a notification to the open digest of its group, or opens one. It may be repeated.
func (d *Digests) Add(ctx context.Context, sink string, e DigestEntry) (AddedToDigest, error) {
	shared, err := json.Marshal(e.Shared)
	if err != nil {
		return AddedToDigest{}, fmt.Errorf("encode digest: %w", err)
	}
	onlyIfWaiting := 0
	if e.OnlyIfWaiting {
		onlyIfWaiting = 1
	}
	n := newNotification(e.Notification)
	// It does not wait for replicas, because a repetition after the digest was sealed would add the notification twice.
	reply, err := addToDigestScript.Run(ctx, d.client, d.digestKeys(sink, e.Group),
		onlyIfWaiting, e.Group, e.Wait.Milliseconds(), NewDeliveryID(e.ArrivedAt), shared,
		e.MaxListed, maxDigestBytes, digestDedupSize,
		n.ID, n.Topic, e.ArrivedAt.UnixMilli(), e.ArrivedAt.UTC().Format(time.RFC3339Nano), n.appendFields(nil),
		e.LeaseEnd, e.MaxBacklog, e.MaxBytes).Int64Slice()
	if err == nil && len(reply) != 2 {
		err = errReply
	}
	if err != nil {
		return AddedToDigest{}, redisconn.WrapError("add to digest", err)
	}
	if reply[0] < 0 {
		return AddedToDigest{Done: reply[0] == claimLost}, nil
	}
	return AddedToDigest{Done: true, SealAfter: time.Duration(reply[0]) * time.Millisecond, IsNew: reply[1] == 1}, nil
}

// SealWithin makes the open digests of a sink due after a wait at the latest. It returns the number of digests whose
// time it has changed.
func (d *Digests) SealWithin(ctx context.Context, sink string, wait time.Duration) (shortened int, err error) {
	shortened, err = sealWithinScript.Run(ctx, d.client, []string{DigestsKey(d.keys, sink)}, wait.Milliseconds()).Int()
	return shortened, redisconn.WrapError("seal digests earlier", err)
}

// OpenDigest is a digest that is not sealed yet.
type OpenDigest struct {
	// ID is the ID of the delivery that it becomes.
	ID     string
	Count  int // of its events
	SealAt time.Time
}

// List returns up to limit open digests of a sink after the first skipped ones, the next one to be sealed first. If digests were
// sealed since the previous list, it skips as many others.
func (d *Digests) List(ctx context.Context, sink string, skipped, limit int) ([]OpenDigest, error) {
	const operation = "list open digests"
	groups, err := d.client.ZRangeWithScores(ctx, DigestsKey(d.keys, sink), int64(skipped), int64(skipped+limit)-1).Result()
	if err != nil || len(groups) == 0 {
		return nil, redisconn.WrapError(operation, err)
	}
	replies := make([]*redis.SliceCmd, len(groups))
	_, err = d.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, g := range groups {
			group, _ := g.Member.(string)
			replies[i] = pipe.HMGet(ctx, DigestKey(d.keys, sink, group), "id", "count")
		}
		return nil
	})
	if err != nil {
		return nil, redisconn.WrapError(operation, err)
	}
	list := make([]OpenDigest, len(groups))
	for i, g := range groups { // the fields are missing if it was sealed in the meantime
		values := replies[i].Val()
		id, _ := values[0].(string)
		count, _ := values[1].(string)
		list[i] = OpenDigest{ID: id, SealAt: time.UnixMilli(int64(g.Score)).UTC()}
		list[i].Count, _ = strconv.Atoi(count)
	}
	return list, nil
}

// Seal makes scheduled deliveries of the open digests of groups, if they are due. Nodes may do this concurrently.
func (d *Digests) Seal(ctx context.Context, sink string, groups []string) error {
	_, err := d.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, group := range groups {
			pipe.Eval(ctx, retryQueueSource+sealDigestSource, d.digestKeys(sink, group), group)
		}
		return nil
	})
	if err != nil {
		return redisconn.WrapError("seal digest", err)
	}
	return nil
}

// SealAccount seals the open digests that mention an account, so [Retries.EraseAccount] finds them.
func (d *Digests) SealAccount(ctx context.Context, sink, account string) error {
	groups, err := d.client.ZRange(ctx, DigestsKey(d.keys, sink), 0, -1).Result()
	if err != nil {
		return redisconn.WrapError("list open digests", err)
	}
	for _, group := range groups {
		values, err := d.client.HVals(ctx, DigestKey(d.keys, sink, group)).Result()
		if err != nil {
			return redisconn.WrapError("read an open digest", err)
		}
		if !slices.ContainsFunc(values, func(v string) bool { return strings.Contains(v, account) }) {
			continue
		}
		due := redis.Z{Member: group} // the score 0 is in the past
		if err := d.client.ZAddXX(ctx, DigestsKey(d.keys, sink), due).Err(); err != nil {
			return redisconn.WrapError("make a digest due", err)
		}
		if err := d.Seal(ctx, sink, []string{group}); err != nil {
			return err
		}
	}
	return nil
}

func (d *Digests) digestKeys(sink, group string) []string {
	return d.retryKeys(sink, DigestsKey(d.keys, sink), DigestKey(d.keys, sink, group), DigestCountKey(d.keys, sink),
		DigestBytesKey(d.keys, sink))
}

// NewDeliveryID returns an ID in the format of notification IDs, whose first four bytes are seconds.
func NewDeliveryID(at time.Time) string {
	var raw [12]byte
	binary.BigEndian.PutUint32(raw[:], uint32(at.Unix()))
	_, _ = rand.Read(raw[4:]) // never returns an error
	return hex.EncodeToString(raw[:])
}
