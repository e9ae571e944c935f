package keymanager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/durations"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth/keystore"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
)

const (
	// pollInterval is the time between checks of the stored keys. The streams of a revoked key must be closed within a
	// second.
	pollInterval = 500 * time.Millisecond
	// useInterval is the time between two records of the last use of keys.
	useInterval = 30 * time.Second
	// maxOverlap is the maximum time for which the old secret of a rotated key stays valid.
	maxOverlap = 30 * 24 * time.Hour
)

// Options configure a [Manager]. All fields are required.
type Options struct {
	Keys  *Keys
	Store *keystore.Store
	// CheckSpec returns an error if a key with this name and these permissions may not be created.
	CheckSpec func(name string, spec adminapi.KeySpec) error
	// OnChanged is called after the stored keys have changed.
	OnChanged func()
	Log       *slog.Logger
}

// Manager applies the keys in Redis to this node, and changes them. Its methods may be called concurrently.
type Manager struct {
	opts Options

	mu      sync.Mutex
	version string // of the applied keys
}

// NewManager loads the stored keys.
func NewManager(ctx context.Context, o Options) (*Manager, error) {
	m := &Manager{opts: o}
	return m, m.load(ctx)
}

// applyChanges loads the keys if they have changed since the last time.
func (m *Manager) applyChanges(ctx context.Context) error {
	version, err := m.opts.Store.Version(ctx)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if version == m.version {
		return nil
	}
	return m.load(ctx)
}

// load applies the keys. The caller holds m.mu, or is alone.
func (m *Manager) load(ctx context.Context) error {
	keys, version, err := m.opts.Store.Load(ctx)
	if err != nil {
		return err
	}
	changed, err := m.opts.Keys.setStored(keys)
	if err != nil {
		return err
	}
	m.version = version
	if changed {
		m.opts.OnChanged()
	}
	return nil
}

// Run follows the stored keys until ctx ends. While Redis does not respond, the known keys stay valid.
func (m *Manager) Run(ctx context.Context) error {
	poll, use := time.NewTicker(pollInterval), time.NewTicker(useInterval)
	defer poll.Stop()
	defer use.Stop()
	recorded := time.Now()
	logged := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-use.C:
			if m.recordUse(ctx, recorded) == nil {
				recorded = now
			}
			continue
		case <-poll.C:
		}
		err := m.applyChanges(ctx)
		switch {
		case err == nil:
			logged = ""
		case ctx.Err() == nil && logged != err.Error():
			logged = err.Error()
			m.opts.Log.Error("stored API keys were not read, the previous ones stay in use", "error", err)
		}
	}
}

func (m *Manager) recordUse(ctx context.Context, since time.Time) error {
	uses := m.opts.Keys.usesSince(since.Unix())
	if len(uses) == 0 {
		return nil
	}
	return m.opts.Store.RecordUse(ctx, uses)
}

// List returns the keys of the configuration and the stored ones, sorted by name.
func (m *Manager) List(ctx context.Context) ([]adminapi.Key, error) {
	stored, err := m.opts.Store.List(ctx)
	if err != nil {
		return nil, err
	}
	lastUsed, err := m.opts.Store.LastUsed(ctx)
	if err != nil {
		return nil, err
	}
	list := []adminapi.Key{}
	for _, c := range m.opts.Keys.listConfigured() {
		list = append(list, adminapi.Key{Name: c.Name, Origin: adminapi.KeyOriginConfiguration, KeySpec: c.Spec})
	}
	for i := range stored {
		s := &stored[i]
		list = append(list, adminapi.Key{
			Name: s.Name, Origin: adminapi.KeyOriginStored, KeySpec: adminapi.KeySpec{
				AccountID: s.AccountID, Hubs: append([]string{}, s.Hubs...), Capabilities: s.Capabilities, Topics: s.Topics,
				Networks: s.Networks, ExpiresAt: s.Expires,
			},
			CreatedAt: s.CreatedAt, RotatedAt: s.RotatedAt, PreviousExpiresAt: s.PreviousExpires,
		})
	}
	recent := m.opts.Keys.usesSince(1) // of this node, which are not stored yet
	for i := range list {
		used := lastUsed[list[i].Name]
		if own := time.Unix(recent[list[i].Name], 0).UTC(); own.After(used) && own.Unix() > 0 {
			used = own
		}
		list[i].LastUsedAt = used
	}
	slices.SortStableFunc(list, func(a, b adminapi.Key) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// Create stores a key and returns its secret. A name that exists is 409.invalid-state.
func (m *Manager) Create(ctx context.Context, name string, spec adminapi.KeySpec) (adminapi.CreatedKey, error) {
	created := adminapi.CreatedKey{Name: name}
	if m.opts.Keys.isConfigured(name) {
		return created, m.newKeyError(name, keystore.ErrExists)
	}
	if err := m.opts.CheckSpec(name, spec); err != nil {
		return created, relay.NewError(relay.CodeInvalidArgument, err.Error())
	}
	if !spec.ExpiresAt.IsZero() && !spec.ExpiresAt.After(time.Now()) {
		return created, relay.NewError(relay.CodeInvalidArgument, "expires_at is in the past").WithPointer("/expires_at")
	}
	var err error
	created.Key, err = m.opts.Store.Create(ctx, name, keystore.Spec{
		AccountID: spec.AccountID, Hubs: spec.Hubs, Capabilities: spec.Capabilities, Topics: spec.Topics,
		Networks: spec.Networks, Expires: spec.ExpiresAt,
	})
	return created, m.finishChange(ctx, name, err)
}

// Rotate gives a stored key a new secret and returns it. The old one stays valid for overlap.
func (m *Manager) Rotate(ctx context.Context, name string, overlap time.Duration) (adminapi.CreatedKey, error) {
	created := adminapi.CreatedKey{Name: name}
	if overlap < 0 || overlap > maxOverlap {
		return created, relay.NewError(relay.CodeInvalidArgument,
			fmt.Sprintf("overlap is %s; choose 0s to %dd", durations.Format(overlap), maxOverlap/(24*time.Hour)))
	}
	if err := m.rejectConfigured(name); err != nil {
		return created, err
	}
	secret, rotated, err := m.opts.Store.Rotate(ctx, name, overlap)
	created.Key, created.PreviousExpiresAt = secret, rotated.PreviousExpires
	return created, m.finishChange(ctx, name, err)
}

// Revoke removes a stored key.
func (m *Manager) Revoke(ctx context.Context, name string) error {
	if err := m.rejectConfigured(name); err != nil {
		return err
	}
	return m.finishChange(ctx, name, m.opts.Store.Revoke(ctx, name))
}

func (m *Manager) rejectConfigured(name string) error {
	if m.opts.Keys.isConfigured(name) {
		return relay.NewError(relay.CodeInvalidState, "the key "+name+" is in the configuration: change or remove it there")
	}
	return nil
}

// finishChange applies a change to this node before the response. Other nodes follow within a second, and so does this
// one if Redis does not respond now.
func (m *Manager) finishChange(ctx context.Context, name string, err error) error {
	if err == nil || errors.Is(err, redisconn.ErrTooFewReplicas) {
		_ = m.applyChanges(ctx)
	}
	return m.newKeyError(name, err)
}

// newKeyError converts an error of the store for an operator.
func (m *Manager) newKeyError(name string, err error) error {
	switch {
	case errors.Is(err, keystore.ErrExists), errors.Is(err, keystore.ErrTooMany), errors.Is(err, keystore.ErrConflict):
		return relay.NewError(relay.CodeInvalidState, name+": "+err.Error())
	case errors.Is(err, keystore.ErrNotFound):
		return m.opts.Keys.keyring.NewNotFoundError(name)
	default:
		return err
	}
}
