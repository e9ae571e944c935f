// Package keymanager keeps the API keys of a node up to date. [Keys] merges the keys of the configuration with the keys
// that were created at run time. [Manager] follows the latter in Redis, and implements the operations on keys of the
// admin API.
//
// How a key is checked belongs to package auth, and its form in Redis to package keystore.
package keymanager

import (
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/apikey"
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

// Keys updates the keyring from the configuration, the key files and the stored keys. It may be used concurrently.
type Keys struct {
	keyring *auth.Keyring

	mu         sync.Mutex
	configured []ConfiguredKey
	stored     []auth.Key
	loaded     []auth.Key
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
	k.mu.Lock()
	defer k.mu.Unlock()
	_, err := k.replaceKeys(configured)
	if err == nil {
		k.configured = configured
	}
	return err
}

// ReloadFiles reads the key files again and reports whether a key has changed. After an error the previous keys
// stay in use.
func (k *Keys) ReloadFiles() (changed bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !slices.ContainsFunc(k.configured, func(c ConfiguredKey) bool { return c.HasFile }) {
		return false, nil
	}
	return k.replaceKeys(k.configured)
}

// setStored replaces the stored keys and reports whether a key has changed.
func (k *Keys) setStored(stored []auth.Key) (changed bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stored = stored
	return k.replaceKeys(k.configured)
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

// replaceKeys merges the keys. A configured key has precedence over a stored one with its name or secret. The caller holds
// k.mu.
func (k *Keys) replaceKeys(configured []ConfiguredKey) (changed bool, err error) {
	list := make([]auth.Key, 0, len(configured)+len(k.stored))
	names, hashes := make(map[string]bool), make(map[apikey.Hash]bool)
	for _, c := range configured {
		key, err := c.Load()
		if err != nil {
			return false, fmt.Errorf("auth key %q: %w", c.Name, err)
		}
		list = append(list, key)
		names[key.Name], hashes[key.Hash] = true, true
	}
	for _, s := range k.stored {
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
	if reflect.DeepEqual(list, k.loaded) {
		return false, nil
	}
	if err := k.keyring.Replace(list); err != nil {
		return false, err
	}
	k.loaded = list
	return true, nil
}
