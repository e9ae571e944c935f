package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/clientaddr"
	"github.com/hubrelay/hubrelay/relay/internal/config"
)

// keyPollInterval is the time between checks of key files. The streams of a removed key must be closed within a
// second.
const keyPollInterval = 500 * time.Millisecond

// keyLoader updates the keyring from the configuration, the key files and the stored keys. It may be used concurrently.
type keyLoader struct {
	keyring *auth.Keyring

	mu         sync.Mutex
	configured []config.Key
	stored     []auth.Key
	loaded     []auth.Key
	lastUsed   map[string]*atomic.Int64 // by the name of the key
}

func newKeys(configured []config.Key) (*keyLoader, error) {
	ring, err := auth.NewKeyring(nil)
	if err != nil {
		return nil, err
	}
	k := &keyLoader{keyring: ring, lastUsed: make(map[string]*atomic.Int64)}
	return k, k.setConfig(configured)
}

// setConfig replaces the keys. After an error the previous keys stay in use.
func (k *keyLoader) setConfig(configured []config.Key) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, err := k.replaceKeys(configured)
	if err == nil {
		k.configured = configured
	}
	return err
}

// reloadFiles reads the key files again and reports whether a key has changed. After an error the previous keys
// stay in use.
func (k *keyLoader) reloadFiles() (changed bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !slices.ContainsFunc(k.configured, func(k config.Key) bool { return k.KeyFile != "" }) {
		return false, nil
	}
	return k.replaceKeys(k.configured)
}

// setStored replaces the stored keys and reports whether a key has changed.
func (k *keyLoader) setStored(stored []auth.Key) (changed bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stored = stored
	return k.replaceKeys(k.configured)
}

// isConfigured reports whether the configuration has a key of this name.
func (k *keyLoader) isConfigured(name string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.ContainsFunc(k.configured, func(c config.Key) bool { return c.Name == name })
}

// configuredKeys returns the keys of the configuration.
func (k *keyLoader) configuredKeys() []config.Key {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.configured
}

// usesSince returns the last use of each key that was used at t or later, in Unix seconds by name.
func (k *keyLoader) usesSince(t int64) map[string]int64 {
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

// replaceKeys merges the keys. A configured key has precedence over a stored one with its name or secret.
func (k *keyLoader) replaceKeys(configured []config.Key) (changed bool, err error) {
	list, err := authKeys(configured)
	if err != nil {
		return false, err
	}
	names, hashes := make(map[string]bool), make(map[apikey.Hash]bool)
	for i := range list {
		names[list[i].Name], hashes[list[i].Hash] = true, true
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

func authKeys(keys []config.Key) ([]auth.Key, error) {
	list := make([]auth.Key, 0, len(keys))
	for _, k := range keys {
		key, err := authKey(k)
		if err != nil {
			return nil, fmt.Errorf("auth key %q: %w", k.Name, err)
		}
		list = append(list, key)
	}
	return list, nil
}

func authKey(k config.Key) (key auth.Key, err error) {
	key = auth.Key{
		Name: k.Name, AccountID: k.AccountID, Hash: auth.HashOfSAN(k.SAN), SAN: k.SAN, Hubs: k.Hubs,
		Capabilities: k.Capabilities, Expires: k.Expires,
	}
	if k.SAN == "" {
		if key.Hash, err = k.SHA256(); err != nil {
			return key, err
		}
	}
	if key.Topics, err = relay.ParsePatterns(k.Topics); err != nil {
		return key, err
	}
	key.Networks, err = clientaddr.ParseNetworks(k.Networks)
	return key, err
}

// pollFiles calls reread periodically until ctx ends, and changed after each change. The name describes the
// secrets in the log. A file that cannot be read changes nothing and is logged once per error.
func pollFiles(
	ctx context.Context, log *slog.Logger, name string, reread func() (bool, error), changed func(),
) error {
	tick := time.NewTicker(keyPollInterval)
	defer tick.Stop()
	logged := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		updated, err := reread()
		switch {
		case err != nil && logged != err.Error():
			logged = err.Error()
			log.Error("secret files were not read, the previous secrets stay in use", "secrets", name, "error", err)
		case err == nil:
			logged = ""
		}
		if updated {
			changed()
			log.Info("secret files were reloaded", "secrets", name)
		}
	}
}
