package forward

import (
	"context"
	_ "embed"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/backoff"
	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

const (
	// maxStoredChanges bounds the memory in Redis. Beyond it, all credentials count as changed.
	maxStoredChanges = 100_000
	// maxStoredAge is the time after which no token and no stream depends on a change.
	maxStoredAge  = maxLifetime + time.Minute
	recordTimeout = 2 * time.Second
)

//go:embed scripts/record_changes.lua
var recordSource string

var recordScript = redisconn.NewScript(recordSource)

// ChangesKey is the sorted set of the times when credentials changed, in unix milliseconds by account and hub, or by "" for all.
func ChangesKey(k keyspace.Space) string { return k.Global("credentialchanges") }

// ChangeStore keeps in Redis when credentials changed. Without it, tokens would become valid again on a node that starts after a
// change. It may be used concurrently.
type ChangeStore struct {
	client redis.UniversalClient
	key    string
	log    *slog.Logger

	mu      sync.Mutex
	pending map[string]time.Time // by member
	added   chan struct{}
}

// NewChangeStore returns a store. Changes are recorded while Run runs.
func NewChangeStore(client redis.UniversalClient, keys keyspace.Space, log *slog.Logger) *ChangeStore {
	return &ChangeStore{
		client: client, key: ChangesKey(keys), log: log,
		pending: make(map[string]time.Time), added: make(chan struct{}, 1),
	}
}

// Load marks the changes of the last hour in a verifier.
func (s *ChangeStore) Load(ctx context.Context, v *Verifier) error {
	list, err := s.client.ZRangeWithScores(ctx, s.key, 0, -1).Result()
	if err != nil {
		return redisconn.WrapError("read the changes of credentials", err)
	}
	for _, z := range list {
		member, _ := z.Member.(string)
		at := time.UnixMilli(int64(z.Score))
		if account, hub, ok := decodeMember(member); ok {
			v.changes.add(account, hub, at)
		} else {
			v.changes.addAll(at)
		}
	}
	return nil
}

// encodeMember encodes an account and a hub, which may contain any character.
func encodeMember(account, hub string) string {
	return strconv.Itoa(len(account)) + ":" + account + hub
}

func decodeMember(member string) (account, hub string, ok bool) {
	length, rest, _ := strings.Cut(member, ":")
	n, err := strconv.Atoi(length)
	if err != nil || n < 0 || n > len(rest) {
		return "", "", false
	}
	return rest[:n], rest[n:], true
}

// Add records that the credentials of an account for a hub have changed now. It does not block.
func (s *ChangeStore) Add(account, hub string) { s.addMember(encodeMember(account, hub)) }

// AddAll records that all credentials may have changed.
func (s *ChangeStore) AddAll() { s.addMember("") }

func (s *ChangeStore) addMember(member string) {
	s.mu.Lock()
	s.pending[member] = time.Now()
	s.mu.Unlock()
	select {
	case s.added <- struct{}{}:
	default:
	}
}

// Run records changes until ctx ends, and the last ones after that. It returns nil.
func (s *ChangeStore) Run(ctx context.Context) error {
	retry := backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
	for {
		ended := ctx.Err() != nil // read first: changes that are added before the end are recorded
		err := s.recordPending()
		if err != nil {
			s.log.Warn("changes of credentials could not be recorded",
				"error", err)
		}
		if ended {
			return nil
		}
		if err != nil {
			retry.Sleep(ctx)
			continue
		}
		retry.Reset()
		select {
		case <-s.added:
		case <-ctx.Done():
		}
	}
}

// recordPending stores the pending changes.
func (s *ChangeStore) recordPending() error {
	s.mu.Lock()
	changes := s.pending
	s.pending = make(map[string]time.Time)
	s.mu.Unlock()
	if len(changes) == 0 {
		return nil
	}
	args := make([]any, 0, 3+2*len(changes))
	args = append(args, time.Now().Add(-maxStoredAge).UnixMilli(), maxStoredChanges, maxStoredAge.Milliseconds())
	for member, at := range changes {
		args = append(args, at.UnixMilli()+1, member) // rounded up, so it is after each earlier decision
	}
	ctx, cancel := context.WithTimeout(context.Background(), recordTimeout)
	defer cancel()
	err := recordScript.Run(ctx, s.client, []string{s.key}, args...).Err()
	if err == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for member, at := range changes {
		if at.After(s.pending[member]) {
			s.pending[member] = at
		}
	}
	return redisconn.WrapError("record the changes of credentials", err)
}
