package deliver

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
	// digestRemembers is how many ids an open digest knows, to count nothing twice. Only what was not acked comes again,
	// which is what the nodes have in hand.
	digestRemembers = 4096
	// lostClaim is gather.lua's answer where somebody else has the parked delivery by now.
	lostClaim = -2
)

var (
	//go:embed scripts/gather.lua
	gatherSource string
	//go:embed scripts/seal.lua
	sealSource string

	gatherScript = redis.NewScript(delaySource + gatherSource)
)

// digest are the keys of an open digest as its scripts expect them.
func (s *Store) digest(sink, group string) []string {
	return s.delay(sink, s.keys.Digests(sink), s.keys.Digest(sink, group), s.keys.Gathering(sink))
}

// gathered is a notification to be gathered, and with what.
type gathered struct {
	n    relay.Notification
	by   map[string]string // what the digest has in common, without what is empty
	key  string            // tells groups apart
	max  int
	wait time.Duration
	came time.Time
	ends string // of the claim of a parked one, empty for a fresh one
	most int64  // of open digests and parked deliveries before another digest is opened; zero is no bound
}

// gather appends to the open digest of a group. With join it does so only where something of the sink is due or gathers
// already. done says that nothing is left to do for g: it was gathered, or the claim of a parked one was lost. It returns how long the digest goes on gathering, and whether it is a new one.
func (s *Store) gather(ctx context.Context, sink string, g gathered, join bool) (wait time.Duration, fresh, done bool, err error) {
	by, err := json.Marshal(g.by)
	if err != nil {
		return 0, false, false, fmt.Errorf("encode what a digest has in common: %w", err)
	}
	one := newParked(g.n)
	reply, err := gatherScript.Run(ctx, s.client, s.digest(sink, g.key), flag(join), g.key, g.wait.Milliseconds(),
		newID(g.came), by, g.max, digestBytes, digestRemembers,
		g.n.ID, g.n.Topic, g.came.UnixMilli(), g.came.UTC().Format(time.RFC3339Nano), one.appendInner(nil), g.ends, g.most).Int64Slice()
	if err == nil && len(reply) != 2 {
		err = errReply
	}
	if err != nil {
		return 0, false, false, fmt.Errorf("gather a notification: %w", err)
	}
	if reply[0] < 0 {
		return 0, false, reply[0] == lostClaim, nil
	}
	return time.Duration(reply[0]) * time.Millisecond, reply[1] == 1, true, nil
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

// seal makes parked deliveries of the open digests of groups whose time has come. Nodes may do so at once.
func (s *Store) seal(ctx context.Context, sink string, groups []string) error {
	_, err := s.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, group := range groups {
			pipe.Eval(ctx, delaySource+sealSource, s.digest(sink, group), group)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("seal a digest: %w", err)
	}
	return nil
}

// open reads which digests are to be sealed now, at most as many as deliveries could still be claimed, and moves next
// ahead to when one is.
func (l *look) open(digests []redis.Z, ends string) error {
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
		if l.next < 0 || wait < l.next {
			l.next = wait
		}
		if wait == 0 && len(l.claimed)+len(l.groups) < l.most {
			l.groups = append(l.groups, group)
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
		pipe.Unlink(ctx, s.keys.Gathering(sink))
		pipe.Unlink(ctx, s.keys.Batched(sink), s.keys.Batches(sink))
		return nil
	})
	if err != nil {
		return fmt.Errorf("forget a sink: %w", err)
	}
	return nil
}

// newID looks like the id of a notification: its first four bytes are seconds.
func newID(at time.Time) string {
	var raw [12]byte
	binary.BigEndian.PutUint32(raw[:], uint32(at.Unix()))
	_, _ = rand.Read(raw[4:]) // never fails, by its documentation
	return hex.EncodeToString(raw[:])
}

// Common is what a digest by these names has in common when n is in it: values by name, without those that n lacks.
func Common(n relay.Notification, by []string) map[string]string {
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

// group returns what the digest of a notification has in common and a name for it that is short.
func group(n relay.Notification, by []string) (common map[string]string, key string) {
	common = Common(n, by)
	hash := sha256.New()
	for _, what := range by {
		_, _ = fmt.Fprintf(hash, "%s=%q\n", what, common[what]) // never fails, by its documentation
	}
	return common, hex.EncodeToString(hash.Sum(nil)[:8])
}
