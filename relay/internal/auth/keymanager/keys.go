// Package keymanager keeps the API keys of a node up to date. [Keys] merges the keys of the configuration with the keys
// that were created at run time. [Manager] follows the latter in Redis, and implements the operations on keys of the
// admin API.
//
// How a key is checked belongs to package auth, and its form in Redis to package keystore.
package keymanager

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/internal/filewatch"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
)

// ConfiguredKey is a key of the configuration.
type ConfiguredKey struct {
	Name string
	Spec adminapi.KeySpec
	// HasFile reports whether the secret is in a file, which may change.
	HasFile bool
	// Load returns the key, and reads the file of the secret.
	Load func() (auth.Key, error)
}

// Keys updates the keyring from the configuration, the key files and the stored keys. It may be used concurrently, but only one
// goroutine may call SetConfigured, and only one ReloadFiles.
type Keys struct {
	keyring *auth.Keyring

	mu         sync.Mutex
	configured []ConfiguredKey
	changes    int        // calls of SetConfigured
	loaded     []auth.Key // the configured keys, as they were last read
	stored     []auth.Key
	current    []auth.Key
	lastUsed   map[string]*atomic.Int64 // by the name of the key
}

// NewKeys returns the configured keys.
func NewKeys(configured []ConfiguredKey) (*Keys, error) {
	ring, err := auth.NewKeyring(nil)
	if err != nil {
		return nil, err
	}
	k := &Keys{keyring: ring, lastUsed: make(map[string]*atomic.Int64)}
	return k, k.SetConfigured(configured)
}

// Keyring returns the keyring that contains the current keys.
func (k *Keys) Keyring() *auth.Keyring { return k.keyring }

// SetConfigured replaces the configured keys. After an error the previous keys stay in use.
func (k *Keys) SetConfigured(configured []ConfiguredKey) error {
	// Without the lock, because a file system that does not respond must not keep a revoked key valid.
	loaded, err := filewatch.LoadEach(configured, loadKey, nil)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, err := k.replaceKeys(loaded, k.stored); err != nil {
		return err
	}
	k.configured = configured
	k.changes++
	return nil
}

// ReloadFiles reads the key files again and reports whether a key has changed. A key whose file cannot be read keeps its secret.
// If two keys have the same secret, all keep theirs.
func (k *Keys) ReloadFiles() (changed bool, err error) {
	k.mu.Lock()
	configured, previous, changes := k.configured, k.loaded, k.changes
	k.mu.Unlock()
	if !slices.ContainsFunc(configured, func(c ConfiguredKey) bool { return c.HasFile }) {
		return false, nil
	}
	loaded, loadErr := filewatch.LoadEach(configured, loadKey, previous)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.changes != changes { // SetConfigured has read the files
		return false, nil
	}
	changed, err = k.replaceKeys(loaded, k.stored)
	return changed, errors.Join(loadErr, err)
}

func loadKey(c ConfiguredKey) (auth.Key, error) {
	key, err := c.Load()
	if err != nil {
		return key, fmt.Errorf("auth key %q: %w", c.Name, err)
	}
	return key, nil
}

// setStored replaces the stored keys and reports whether a key has changed. It does not read the key files, because a
// file that cannot be read must not keep a revoked key valid.
func (k *Keys) setStored(stored []auth.Key) (changed bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.replaceKeys(k.loaded, stored)
}

// isConfigured reports whether the configuration has a key of this name.
func (k *Keys) isConfigured(name string) bool {
	return slices.ContainsFunc(k.listConfigured(), func(c ConfiguredKey) bool { return c.Name == name })
}

func (k *Keys) listConfigured() []ConfiguredKey {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.configured
}

// usesSince returns the last use of each key that was used at t or later, in Unix seconds by name.
func (k *Keys) usesSince(t int64) map[string]int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	uses := make(map[string]int64)
	for name, last := range k.lastUsed {
		if used := last.Load(); used >= t {
			uses[name] = used
		}
	}
	return uses
}

// replaceKeys merges the keys. A configured key has precedence over a stored one with its name or secret. After an error all
// keys stay. The caller holds k.mu.
func (k *Keys) replaceKeys(loaded, stored []auth.Key) (changed bool, err error) {
	list := make([]auth.Key, 0, len(loaded)+len(stored))
	names, hashes := make(map[string]bool), make(map[apikey.Hash]bool)
	for _, key := range loaded {
		list = append(list, key)
		names[key.Name], hashes[key.Hash] = true, true
	}
	for _, s := range stored {
		if !names[s.Name] && !hashes[s.Hash] {
			hashes[s.Hash] = true
			list = append(list, s)
		}
	}
	for i := range list {
		name := list[i].Name
		if k.lastUsed[name] == nil {
			k.lastUsed[name] = new(atomic.Int64)
		}
		list[i].LastUsed = k.lastUsed[name]
	}
	if !reflect.DeepEqual(list, k.current) {
		if err := k.keyring.Replace(list); err != nil {
			return false, err
		}
		changed = true
	}
	k.loaded, k.stored, k.current = loaded, stored, list
	return changed, nil
}
