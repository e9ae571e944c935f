package delivery

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/relay"
)

const (
	// digestBytes bounds what a digest lists besides its number of notifications: one may have 256 KiB.
	digestBytes = 4 << 20
	// digestDedupSize is how many ids an open digest knows, to count nothing twice. Only what was not acked comes again,
	// which is what the nodes have in hand.
	digestDedupSize = 4096
	// claimLost is digest_add.lua's answer where somebody else has the parked delivery by now.
	claimLost = -2
)

var (
	//go:embed scripts/digest_add.lua
	gatherSource string
	//go:embed scripts/digest_seal.lua
	sealSource string

	gatherScript = redis.NewScript(delaySource + gatherSource)
)

// digestKeys are the keys of an open digest as its scripts expect them.
func (s *Store) digestKeys(sink, group string) []string {
	return s.retryQueueKeys(sink, s.keys.Digests(sink), s.keys.Digest(sink, group), s.keys.DigestCount(sink))
}

// digestEntry is a notification to be gathered, and with what.
type digestEntry struct {
	notification relay.Notification
	attributes   map[string]string // what the digest has in common, without what is empty
	key          string            // tells groups apart
	max          int
	wait         time.Duration
	arrivedAt    time.Time
	claimEnd     string // of the claim of a parked one, empty for a fresh one
	maxBacklog   int64  // of open digests and parked deliveries before another digest is opened; zero is no bound
}

// addToDigest appends to the open digest of a group. With join it does so only where something of the sink is due or gathers
// already. done says that nothing is left to do for g: it was gathered, or the claim of a parked one was lost. It returns how long the digest goes on gathering, and whether it is a new one.
func (s *Store) addToDigest(ctx context.Context, sink string, g digestEntry, join bool) (wait time.Duration, fresh, done bool, err error) {
	by, err := json.Marshal(g.attributes)
	if err != nil {
		return 0, false, false, fmt.Errorf("encode what a digest has in common: %w", err)
	}
	one := newParked(g.notification)
	reply, err := gatherScript.Run(ctx, s.client, s.digestKeys(sink, g.key), boolToInt(join), g.key, g.wait.Milliseconds(),
		newDeliveryID(g.arrivedAt), by, g.max, digestBytes, digestDedupSize,
		g.notification.ID, g.notification.Topic, g.arrivedAt.UnixMilli(), g.arrivedAt.UTC().Format(time.RFC3339Nano), one.appendFields(nil), g.claimEnd, g.maxBacklog).Int64Slice()
	if err == nil && len(reply) != 2 {
		err = errReply
	}
	if err != nil {
		return 0, false, false, fmt.Errorf("gather a notification: %w", err)
	}
	if reply[0] < 0 {
		return 0, false, reply[0] == claimLost, nil
	}
	return time.Duration(reply[0]) * time.Millisecond, reply[1] == 1, true, nil
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// sealDigests makes parked deliveries of the open digests of groups whose time has come. Nodes may do so at once.
func (s *Store) sealDigests(ctx context.Context, sink string, groups []string) error {
	_, err := s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, group := range groups {
			pipe.Eval(ctx, delaySource+sealSource, s.digestKeys(sink, group), group)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("seal a digest: %w", err)
	}
	return nil
}

// selectDueDigests reads which digests are to be sealed now, at most as many as deliveries could still be claimed, and moves next
// ahead to when one is.
func (l *dueQuery) selectDueDigests(digests []redis.Z, ends string) error {
	at, err := strconv.ParseFloat(ends, 64)
	if err != nil {
		return errReply
	}
	now := int64(math.Ceil(at)) - l.lease.Milliseconds()
	for _, z := range digests {
		group, ok := z.Member.(string)
		if !ok {
			return errReply
		}
		wait := time.Duration(max(0, int64(z.Score)-now)) * time.Millisecond
		if l.nextDueIn < 0 || wait < l.nextDueIn {
			l.nextDueIn = wait
		}
		if wait == 0 && len(l.claimed)+len(l.dueDigests) < l.maxClaims {
			l.dueDigests = append(l.dueDigests, group)
		}
	}
	return nil
}

// forgetDigests removes what a sink gathers.
func (s *Store) forgetDigests(ctx context.Context, sink string) error {
	groups, err := s.client.ZRange(ctx, s.keys.Digests(sink), 0, -1).Result()
	if err != nil {
		return fmt.Errorf("forget a sink: %w", err)
	}
	_, err = s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, group := range groups {
			pipe.Unlink(ctx, s.keys.Digest(sink, group))
		}
		pipe.Unlink(ctx, s.keys.Digests(sink))
		pipe.Unlink(ctx, s.keys.DigestCount(sink))
		pipe.Unlink(ctx, s.keys.BatchedIDs(sink), s.keys.BatchLog(sink))
		return nil
	})
	if err != nil {
		return fmt.Errorf("forget a sink: %w", err)
	}
	return nil
}

// newDeliveryID looks like the id of a notification: its first four bytes are seconds.
func newDeliveryID(at time.Time) string {
	var raw [12]byte
	binary.BigEndian.PutUint32(raw[:], uint32(at.Unix()))
	_, _ = rand.Read(raw[4:]) // never fails, by its documentation
	return hex.EncodeToString(raw[:])
}

// SharedAttributes is what a digest by these names has in common when n is in it: values by name, without those that n lacks.
func SharedAttributes(n relay.Notification, by []string) map[string]string {
	common := make(map[string]string, len(by))
	for _, what := range by {
		value := ""
		switch what {
		case ByTopic:
			value = n.Topic
		case ByHub:
			value = n.Hub
		case ByCluster:
			// A notification that cannot be decoded names no cluster, as one that names none.
			envelope, _ := n.Envelope()
			clusters := slices.Clone(envelope.Context.Clusters)
			slices.Sort(clusters)
			value = strings.Join(slices.Compact(clusters), ", ")
		}
		if value != "" {
			common[what] = value
		}
	}
	return common
}

// digestGroup returns what the digest of a notification has in common and a name for it that is short.
func digestGroup(n relay.Notification, by []string) (common map[string]string, key string) {
	common = SharedAttributes(n, by)
	hash := sha256.New()
	for _, what := range by {
		_, _ = fmt.Fprintf(hash, "%s=%q\n", what, common[what]) // never fails, by its documentation
	}
	return common, hex.EncodeToString(hash.Sum(nil)[:8])
}
