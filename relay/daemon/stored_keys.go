package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/adminserver"
	"github.com/hubrelay/hubrelay/relay/internal/auth/keystore"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/hub"
)

const (
	// useInterval is the time between two records of the last use of keys.
	useInterval = 30 * time.Second
	// maxOverlap is the maximum time for which the old secret of a rotated key stays valid.
	maxOverlap = 30 * 24 * time.Hour
)

// storedKeys applies the keys in Redis to this node.
type storedKeys struct {
	app     *Daemon
	store   *keystore.Store
	clients *hub.Hub

	mu      sync.Mutex
	version string // of the applied keys
}

// startStoredKeys loads the keys, and follows their changes until ctx ends.
func (a *Daemon) startStoredKeys(ctx context.Context, p *components, s *stores, clients *hub.Hub) error {
	k := &storedKeys{app: a, store: keystore.NewStore(s.conn), clients: clients}
	if err := k.load(ctx); err != nil {
		return err
	}
	a.storedKeys.Store(k)
	p.startComponent(ctx, "stored API keys", k.run)
	return nil
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
	changed, err := k.app.keys.setStored(keys)
	if err != nil {
		return err
	}
	k.version = version
	if changed {
		k.clients.RecheckKeys()
	}
	return nil
}

// run polls, because the streams of a revoked key must be closed within a second. While Redis does not answer, the
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
			k.app.log.Error("stored API keys were not read, the previous ones stay in use", "error", err)
		}
	}
}

func (k *storedKeys) recordUse(ctx context.Context, since time.Time) error {
	uses := k.app.keys.usesSince(since.Unix())
	if len(uses) == 0 {
		return nil
	}
	return k.store.RecordUse(ctx, uses)
}

// adminKeys implements the keys of the admin API.
type adminKeys struct {
	app    *Daemon
	stored *storedKeys
}

// openKeys returns nil while the daemon is starting.
func (a *Daemon) openKeys() adminserver.Keys {
	stored := a.storedKeys.Load()
	if stored == nil {
		return nil
	}
	return adminKeys{a, stored}
}

// finishChange applies a change to this node before the response. Other nodes follow within a second, and so does this one
// if Redis does not answer now.
func (k adminKeys) finishChange(ctx context.Context, name string, err error) error {
	if err == nil {
		_ = k.stored.applyChanges(ctx)
	}
	return newKeyError(name, err)
}

// List implements [adminserver.Keys].
func (k adminKeys) List(ctx context.Context) ([]adminserver.Key, error) {
	stored, err := k.stored.store.List(ctx)
	if err != nil {
		return nil, err
	}
	lastUsed, err := k.stored.store.LastUsed(ctx)
	if err != nil {
		return nil, err
	}
	list := []adminserver.Key{}
	for _, c := range k.app.keys.configuredKeys() {
		list = append(list, adminserver.Key{
			Source: adminserver.KeySourceConfiguration,
			Key: keystore.Key{Name: c.Name, Spec: keystore.Spec{
				AccountID: c.AccountID, Hubs: c.Hubs, Capabilities: c.Capabilities, Topics: c.Topics,
				Networks: c.Networks,
				Expires:  c.Expires,
			}},
		})
	}
	for i := range stored {
		list = append(list, adminserver.Key{Source: adminserver.KeySourceStored, Key: stored[i]})
	}
	recent := k.app.keys.usesSince(1) // of this node, which are not stored yet
	for i := range list {
		used := lastUsed[list[i].Name]
		if own := time.Unix(recent[list[i].Name], 0).UTC(); own.After(used) && own.Unix() > 0 {
			used = own
		}
		list[i].LastUsed = used
	}
	return list, nil
}

// Create implements [adminserver.Keys].
func (k adminKeys) Create(ctx context.Context, name string, spec keystore.Spec) (string, error) {
	if k.app.keys.isConfigured(name) {
		return "", newKeyError(name, keystore.ErrExists)
	}
	if err := config.CheckKey(config.Key{
		Name: name, AccountID: spec.AccountID, Hubs: spec.Hubs, Capabilities: spec.Capabilities, Topics: spec.Topics,
		Networks: spec.Networks, Expires: spec.Expires,
	}); err != nil {
		return "", relay.NewError(relay.CodeInvalidArgument, err.Error())
	}
	if !spec.Expires.IsZero() && !spec.Expires.After(time.Now()) {
		return "", relay.NewError(relay.CodeInvalidArgument, "expires is in the past")
	}
	secret, err := k.stored.store.Create(ctx, name, spec)
	return secret, k.finishChange(ctx, name, err)
}

// Rotate implements [adminserver.Keys].
func (k adminKeys) Rotate(ctx context.Context, name string, overlap time.Duration) (string, keystore.Key, error) {
	if overlap < 0 || overlap > maxOverlap {
		return "", keystore.Key{}, relay.NewError(relay.CodeInvalidArgument,
			fmt.Sprintf("overlap is %s: choose 0s to %s", overlap, maxOverlap))
	}
	if err := k.rejectConfigured(name); err != nil {
		return "", keystore.Key{}, err
	}
	secret, rotated, err := k.stored.store.Rotate(ctx, name, overlap)
	return secret, rotated, k.finishChange(ctx, name, err)
}

// Revoke implements [adminserver.Keys].
func (k adminKeys) Revoke(ctx context.Context, name string) error {
	if err := k.rejectConfigured(name); err != nil {
		return err
	}
	return k.finishChange(ctx, name, k.stored.store.Revoke(ctx, name))
}

func (k adminKeys) rejectConfigured(name string) error {
	if k.app.keys.isConfigured(name) {
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
