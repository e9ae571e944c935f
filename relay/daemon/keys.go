package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/config"
)

// keyPollInterval is how often the keys' files are looked at: a key that is taken away shall close its streams within a second.
const keyPollInterval = 500 * time.Millisecond

// keyLoader keeps the ring as the configuration and the keys' files say. It may be used concurrently.
type keyLoader struct {
	keyring *auth.Keyring

	mu         sync.Mutex
	configured []config.Key
	loaded     []auth.Key
}

func newKeys(configured []config.Key) (*keyLoader, error) {
	ring, err := auth.NewKeyring(nil)
	if err != nil {
		return nil, err
	}
	k := &keyLoader{keyring: ring}
	return k, k.setConfig(configured)
}

// setConfig puts the keys of another configuration in place of the present ones. After an error these stay.
func (k *keyLoader) setConfig(configured []config.Key) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, err := k.replaceKeys(configured)
	if err == nil {
		k.configured = configured
	}
	return err
}

// reloadFiles reads the files of the keys again and reports whether a key has changed. After an error the keys before stay.
func (k *keyLoader) reloadFiles() (changed bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !slices.ContainsFunc(k.configured, func(k config.Key) bool { return k.KeyFile != "" }) {
		return false, nil
	}
	return k.replaceKeys(k.configured)
}

func (k *keyLoader) replaceKeys(configured []config.Key) (changed bool, err error) {
	now, err := authKeys(configured)
	if err != nil {
		return false, err
	}
	if reflect.DeepEqual(now, k.loaded) {
		return false, nil
	}
	if err := k.keyring.Replace(now); err != nil {
		return false, err
	}
	k.loaded = now
	return true, nil
}

func authKeys(keys []config.Key) ([]auth.Key, error) {
	list := make([]auth.Key, 0, len(keys))
	for _, k := range keys {
		hash, err := k.SHA256()
		if err != nil {
			return nil, fmt.Errorf("auth key %q: %w", k.Name, err)
		}
		list = append(list, auth.Key{
			Name: k.Name, AccountID: k.AccountID, Hash: hash, Hubs: k.Hubs, Capabilities: k.Capabilities, Expires: k.Expires,
		})
	}
	return list, nil
}

// followFiles calls reread until ctx ends, and changed after each change. what names the secrets in the log. A file that
// cannot be read changes nothing, and is logged once per error.
func followFiles(ctx context.Context, log *slog.Logger, what string, reread func() (bool, error), changed func()) error {
	tick := time.NewTicker(keyPollInterval)
	defer tick.Stop()
	logged := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		fresh, err := reread()
		switch {
		case err != nil && logged != err.Error():
			logged = err.Error()
			log.Error("secret files not read, the previous secrets stay in use", "secrets", what, "error", err)
		case err == nil:
			logged = ""
		}
		if fresh {
			changed()
			log.Info("secret files read again", "secrets", what)
		}
	}
}
