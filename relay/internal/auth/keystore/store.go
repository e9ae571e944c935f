// Package keystore stores API keys that operators create at run time in Redis. All nodes use them. A secret is returned
// once, and only its hash is stored.
package keystore

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/internal/keyspace"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

// MaxKeys is the maximum number of stored keys. All nodes keep them in memory.
const MaxKeys = 10_000

// versionField is the field of the hash with the version, a time that each change increases. No key has an empty name.
const versionField = ""

var (
	// ErrExists means that there already is a key with this name.
	ErrExists = errors.New("there already is a key with this name; choose another name, or replace its secret with " +
		"hubrelay keys rotate")
	// ErrNotFound reports that there is no key with this name.
	ErrNotFound = errors.New("there is no key with this name")
	// ErrTooMany means that there are [MaxKeys] keys.
	ErrTooMany = errors.New("there are too many keys")
	// ErrConflict means that another request changed the key at the same time.
	ErrConflict = errors.New("the key was changed at the same time")
	// ErrNoReplicas means that a change was undone, because fewer replicas than [redisconn.Options.MinReplicas] confirmed it.
	ErrNoReplicas = errors.New("the change was undone, because too few replicas of Redis responded; a failover may have kept it, " +
		"so revoke a new key, or rotate the key again")
)

//go:embed scripts/replace.lua
var replaceSource string

var replaceScript = redisconn.NewScript(redisconn.NextVersionLua + replaceSource)

// Store is the keys in Redis. It may be used concurrently.
type Store struct {
	conn      *redisconn.Conn
	client    redis.UniversalClient
	keys, use string
	now       func() time.Time
}

// NewStore returns the store of a Redis.
func NewStore(c *redisconn.Conn) *Store {
	return &Store{
		conn: c, client: c.Commands(), keys: KeysKey(c.Keys()), use: UseKey(c.Keys()), now: time.Now,
	}
}

// KeysKey is the hash of keys by name.
func KeysKey(k keyspace.Space) string { return k.Global("apikeys") }

// UseKey is the hash of the times of last use by name, in Unix seconds.
func UseKey(k keyspace.Space) string { return k.Global("apikeyuse") }

// Version returns a number that changes with each change of a key.
func (s *Store) Version(ctx context.Context) (string, error) {
	version, err := s.client.HGet(ctx, s.keys, versionField).Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return version, redisconn.WrapError("read the version of the API keys", err)
}

// List returns the keys sorted by name.
func (s *Store) List(ctx context.Context) ([]Key, error) {
	records, _, err := s.read(ctx)
	keys := make([]Key, len(records))
	for i := range records {
		keys[i] = records[i].Key
	}
	return keys, err
}

// Load returns the keys for authentication, with the version that List would have reported.
func (s *Store) Load(ctx context.Context) (keys []auth.Key, version string, err error) {
	records, version, err := s.read(ctx)
	if err != nil {
		return nil, "", err
	}
	for i := range records {
		list, err := records[i].authKeys()
		if err != nil {
			return nil, "", fmt.Errorf("read the stored API key %q: %w", records[i].Name, err)
		}
		keys = append(keys, list...)
	}
	return keys, version, nil
}

func (s *Store) read(ctx context.Context) (list []record, version string, err error) {
	fields, err := s.client.HGetAll(ctx, s.keys).Result()
	if err != nil {
		return nil, "", redisconn.WrapError("read the API keys", err)
	}
	for name, text := range fields {
		if name == versionField {
			version = text
			continue
		}
		var r record
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			return nil, "", fmt.Errorf("read the stored API key %q: %w", name, err)
		}
		r.Name = name
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b record) int { return cmp.Compare(a.Name, b.Name) })
	return list, version, nil
}

// Create stores a new key and returns its secret. The error may be [ErrExists], [ErrTooMany] or [ErrNoReplicas].
func (s *Store) Create(ctx context.Context, name string, spec Spec) (secret string, err error) {
	n, err := s.client.HLen(ctx, s.keys).Result()
	if err != nil {
		return "", redisconn.WrapError("count the API keys", err)
	}
	if n > MaxKeys {
		return "", ErrTooMany
	}
	secret = apikey.New()
	created := record{
		Key:    Key{Name: name, Spec: spec, CreatedAt: s.now().UTC().Truncate(time.Second)},
		SHA256: apikey.FormatHash(apikey.HashOf(secret)),
	}
	switch err = s.storeSecret(ctx, name, "", &created); {
	case errors.Is(err, ErrConflict):
		return "", ErrExists
	case err != nil:
		return "", err
	}
	return secret, nil
}

// Rotate gives a key a new secret and returns it. The old secret stays valid for overlap, at most until the key
// expires. An even older one ends now. The error may be [ErrNotFound], [ErrConflict] or [ErrNoReplicas].
func (s *Store) Rotate(ctx context.Context, name string, overlap time.Duration) (secret string, rotated Key,
	err error,
) {
	text, r, err := s.get(ctx, name)
	if err != nil {
		return "", Key{}, err
	}
	now := s.now().UTC()
	secret = apikey.New()
	r.PreviousSHA256, r.PreviousExpires = "", time.Time{}
	if overlap > 0 {
		r.PreviousSHA256, r.PreviousExpires = r.SHA256, now.Add(overlap).Truncate(time.Second)
		if !r.Expires.IsZero() && r.Expires.Before(r.PreviousExpires) {
			r.PreviousExpires = r.Expires
		}
	}
	r.SHA256, r.RotatedAt = apikey.FormatHash(apikey.HashOf(secret)), now.Truncate(time.Second)
	if err := s.storeSecret(ctx, name, text, r); err != nil {
		return "", Key{}, err
	}
	return secret, r.Key, nil
}

// Revoke removes a key, and waits until enough replicas have removed it. The error may be [ErrNotFound], [ErrConflict] or
// [redisconn.ErrTooFewReplicas]. After the last one, the key is revoked on all nodes, but a failover could undo that; a repetition
// only waits again.
func (s *Store) Revoke(ctx context.Context, name string) error {
	text, _, err := s.get(ctx, name)
	if errors.Is(err, ErrNotFound) { // perhaps an earlier call has removed it
		return cmp.Or(s.awaitReplicas(ctx), err)
	}
	if err != nil {
		return err
	}
	if err := s.replaceKey(ctx, name, text, ""); err != nil {
		return err
	}
	if err := s.client.HDel(ctx, s.use, name).Err(); err != nil {
		return redisconn.WrapError("remove the last use of an API key", err)
	}
	return s.awaitReplicas(ctx)
}

// storeSecret stores r, and waits until enough replicas have it. Otherwise it restores the former JSON, because the caller cannot get
// the secret with an error.
func (s *Store) storeSecret(ctx context.Context, name, before string, r *record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode an API key: %w", err)
	}
	if err := s.replaceKey(ctx, name, before, string(text)); err != nil {
		return err
	}
	if err = s.awaitReplicas(ctx); err == nil {
		return nil
	}
	if undoErr := s.replaceKey(context.WithoutCancel(ctx), name, string(text), before); undoErr != nil {
		// Not wrapped: after a failover, a conflict is not a conflict of the request.
		return fmt.Errorf("%w (undoing the change failed, so check the key: %s)", err, undoErr.Error())
	}
	if errors.Is(err, redisconn.ErrTooFewReplicas) {
		return ErrNoReplicas
	}
	return err
}

func (s *Store) awaitReplicas(ctx context.Context) error {
	return redisconn.WrapError("replicate the change of an API key", s.conn.AwaitReplicasOf(ctx, s.keys))
}

func (s *Store) get(ctx context.Context, name string) (text string, r *record, err error) {
	text, err = s.client.HGet(ctx, s.keys, name).Result()
	switch {
	case errors.Is(err, redis.Nil) || name == versionField:
		return "", nil, ErrNotFound
	case err != nil:
		return "", nil, redisconn.WrapError("read an API key", err)
	}
	r = &record{}
	if err := json.Unmarshal([]byte(text), r); err != nil {
		return "", nil, fmt.Errorf("read the stored API key %q: %w", name, err)
	}
	return text, r, nil
}

// replaceKey replaces the JSON of a key. Empty is a key that does not exist.
func (s *Store) replaceKey(ctx context.Context, name, before, after string) error {
	replaced, err := replaceScript.Run(ctx, s.client, []string{s.keys}, name, before, after).Int()
	if err != nil {
		return redisconn.WrapError("store an API key", err)
	}
	if replaced == 0 {
		return ErrConflict
	}
	return nil
}

// RecordUse stores when keys were last used, in Unix seconds by name.
func (s *Store) RecordUse(ctx context.Context, lastUsed map[string]int64) error {
	values := make([]any, 0, 2*len(lastUsed))
	for name, t := range lastUsed {
		values = append(values, name, t)
	}
	return redisconn.WrapError("store the last use of API keys", s.client.HSet(ctx, s.use, values...).Err())
}

// LastUsed returns when each key was last used.
func (s *Store) LastUsed(ctx context.Context) (map[string]time.Time, error) {
	fields, err := s.client.HGetAll(ctx, s.use).Result()
	if err != nil {
		return nil, redisconn.WrapError("read the last use of API keys", err)
	}
	times := make(map[string]time.Time, len(fields))
	for name, text := range fields {
		if seconds, err := strconv.ParseInt(text, 10, 64); err == nil {
			times[name] = time.Unix(seconds, 0).UTC()
		}
	}
	return times, nil
}
