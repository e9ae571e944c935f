package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth/keystore"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/hub"
	"github.com/hubrelay/hubrelay/relay/internal/lifecycle"
)

const (
	// useInterval is the time between two records of the last use of keys.
	useInterval = 30 * time.Second
	// maxOverlap is the maximum time for which the old secret of a rotated key stays valid.
	maxOverlap = 30 * 24 * time.Hour
)

// storedKeys applies the keys in Redis to this node.
type storedKeys struct {
	keys    *keyLoader
	store   *keystore.Store
	clients *hub.Hub
	log     *slog.Logger

	mu      sync.Mutex
	version string // of the applied keys
}

// startStoredKeys loads the keys, and follows their changes until ctx ends.
func (d *Daemon) startStoredKeys(
	ctx context.Context, group *lifecycle.Group, s *stores, clients *hub.Hub,
) (*storedKeys, error) {
	k := &storedKeys{keys: d.keys, store: keystore.NewStore(s.conn), clients: clients, log: d.log}
	if err := k.load(ctx); err != nil {
		return nil, err
	}
	group.Start(ctx, "stored API keys", k.run)
	return k, nil
}

// applyChanges loads the keys if they have changed since the last time.
func (k *storedKeys) applyChanges(ctx context.Context) error {
	version, err := k.store.Version(ctx)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if version == k.version {
		return nil
	}
	return k.load(ctx)
}

// load applies the keys. The caller holds k.mu, or is alone.
func (k *storedKeys) load(ctx context.Context) error {
	keys, version, err := k.store.Load(ctx)
	if err != nil {
		return err
	}
	changed, err := k.keys.setStored(keys)
	if err != nil {
		return err
	}
	k.version = version
	if changed {
		k.clients.RecheckKeys()
	}
	return nil
}

// run polls, because the streams of a revoked key must be closed within a second. While Redis does not respond, the
// known keys stay valid.
func (k *storedKeys) run(ctx context.Context) error {
	poll, use := time.NewTicker(keyPollInterval), time.NewTicker(useInterval)
	defer poll.Stop()
	defer use.Stop()
	recorded := time.Now()
	logged := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-use.C:
			if k.recordUse(ctx, recorded) == nil {
				recorded = now
			}
			continue
		case <-poll.C:
		}
		err := k.applyChanges(ctx)
		switch {
		case err == nil:
			logged = ""
		case ctx.Err() == nil && logged != err.Error():
			logged = err.Error()
			k.log.Error("stored API keys were not read, the previous ones stay in use", "error", err)
		}
	}
}

func (k *storedKeys) recordUse(ctx context.Context, since time.Time) error {
	uses := k.keys.usesSince(since.Unix())
	if len(uses) == 0 {
		return nil
	}
	return k.store.RecordUse(ctx, uses)
}

// adminKeys implements [adminserver.Keys].
type adminKeys struct {
	keys   *keyLoader
	stored *storedKeys
}

// finishChange applies a change to this node before the response. Other nodes follow within a second, and so does this one
// if Redis does not respond now.
func (k adminKeys) finishChange(ctx context.Context, name string, err error) error {
	if err == nil {
		_ = k.stored.applyChanges(ctx)
	}
	return newKeyError(name, err)
}

// List implements [adminserver.Keys].
func (k adminKeys) List(ctx context.Context) ([]adminapi.Key, error) {
	stored, err := k.stored.store.List(ctx)
	if err != nil {
		return nil, err
	}
	lastUsed, err := k.stored.store.LastUsed(ctx)
	if err != nil {
		return nil, err
	}
	list := []adminapi.Key{}
	for _, c := range k.keys.configuredKeys() {
		list = append(list, adminapi.Key{
			Name: c.Name, Source: adminapi.KeySourceConfiguration, KeySpec: adminapi.KeySpec{
				AccountID: c.AccountID, Hubs: append([]string{}, c.Hubs...), Capabilities: c.Capabilities, Topics: c.Topics,
				Networks: c.Networks, ExpiresAt: c.Expires,
			},
		})
	}
	for i := range stored {
		s := &stored[i]
		list = append(list, adminapi.Key{
			Name: s.Name, Source: adminapi.KeySourceStored, KeySpec: adminapi.KeySpec{
				AccountID: s.AccountID, Hubs: append([]string{}, s.Hubs...), Capabilities: s.Capabilities, Topics: s.Topics,
				Networks: s.Networks, ExpiresAt: s.Expires,
			},
			CreatedAt: s.CreatedAt, RotatedAt: s.RotatedAt, PreviousExpiresAt: s.PreviousExpires,
		})
	}
	recent := k.keys.usesSince(1) // of this node, which are not stored yet
	for i := range list {
		used := lastUsed[list[i].Name]
		if own := time.Unix(recent[list[i].Name], 0).UTC(); own.After(used) && own.Unix() > 0 {
			used = own
		}
		list[i].LastUsedAt = used
	}
	return list, nil
}

// Create implements [adminserver.Keys].
func (k adminKeys) Create(ctx context.Context, name string, spec adminapi.KeySpec) (adminapi.CreatedKey, error) {
	created := adminapi.CreatedKey{Name: name}
	if k.keys.isConfigured(name) {
		return created, newKeyError(name, keystore.ErrExists)
	}
	if err := config.CheckKey(config.Key{
		Name: name, AccountID: spec.AccountID, Hubs: spec.Hubs, Capabilities: spec.Capabilities, Topics: spec.Topics,
		Networks: spec.Networks, Expires: spec.ExpiresAt,
	}); err != nil {
		return created, relay.NewError(relay.CodeInvalidArgument, err.Error())
	}
	if !spec.ExpiresAt.IsZero() && !spec.ExpiresAt.After(time.Now()) {
		return created, relay.NewError(relay.CodeInvalidArgument, "expires_at is in the past").WithPointer("/expires_at")
	}
	var err error
	created.Key, err = k.stored.store.Create(ctx, name, keystore.Spec{
		AccountID: spec.AccountID, Hubs: spec.Hubs, Capabilities: spec.Capabilities, Topics: spec.Topics,
		Networks: spec.Networks, Expires: spec.ExpiresAt,
	})
	return created, k.finishChange(ctx, name, err)
}

// Rotate implements [adminserver.Keys].
func (k adminKeys) Rotate(ctx context.Context, name string, overlap time.Duration) (adminapi.CreatedKey, error) {
	created := adminapi.CreatedKey{Name: name}
	if overlap < 0 || overlap > maxOverlap {
		return created, relay.NewError(relay.CodeInvalidArgument,
			fmt.Sprintf("overlap is %s: choose 0s to %s", overlap, maxOverlap))
	}
	if err := k.rejectConfigured(name); err != nil {
		return created, err
	}
	secret, rotated, err := k.stored.store.Rotate(ctx, name, overlap)
	created.Key, created.PreviousExpiresAt = secret, rotated.PreviousExpires
	return created, k.finishChange(ctx, name, err)
}

// Revoke implements [adminserver.Keys].
func (k adminKeys) Revoke(ctx context.Context, name string) error {
	if err := k.rejectConfigured(name); err != nil {
		return err
	}
	return k.finishChange(ctx, name, k.stored.store.Revoke(ctx, name))
}

func (k adminKeys) rejectConfigured(name string) error {
	if k.keys.isConfigured(name) {
		return relay.NewError(relay.CodeInvalidState, "the key "+name+" is in the configuration: change it there")
	}
	return nil
}

// newKeyError converts an error of the store for an operator.
func newKeyError(name string, err error) error {
	switch {
	case errors.Is(err, keystore.ErrExists), errors.Is(err, keystore.ErrTooMany), errors.Is(err, keystore.ErrConflict):
		return relay.NewError(relay.CodeInvalidState, name+": "+err.Error())
	case errors.Is(err, keystore.ErrNotFound):
		return relay.NewError(relay.CodeNoKey, name+": "+err.Error()+"; see hubrelay keys list")
	default:
		return err
	}
}
