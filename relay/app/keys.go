package app

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/hubrelay/hubrelay/relay/auth"
	"github.com/hubrelay/hubrelay/relay/config"
)

// keysEvery is how often the keys' files are looked at: a key that is taken away shall close its streams within a second.
const keysEvery = 500 * time.Millisecond

func newKeyring(keys []config.Key) (*auth.Keyring, error) {
	list, err := authKeys(keys)
	if err != nil {
		return nil, err
	}
	return auth.NewKeyring(list)
}

func authKeys(keys []config.Key) ([]auth.Key, error) {
	list := make([]auth.Key, 0, len(keys))
	for _, k := range keys {
		hash, err := k.Digest()
		if err != nil {
			return nil, fmt.Errorf("auth key %q: %w", k.Name, err)
		}
		list = append(list, auth.Key{
			Name: k.Name, AccountID: k.AccountID, Hash: hash, Hubs: k.Hubs, Capabilities: k.Capabilities, Expires: k.Expires,
		})
	}
	return list, nil
}

// followKeys puts new keys into the ring when their files change, and calls changed behind that. A file that became
// unreadable changes nothing.
func followKeys(ctx context.Context, log *slog.Logger, ring *auth.Keyring, keys []config.Key, changed func()) error {
	inFiles := slices.ContainsFunc(keys, func(k config.Key) bool { return k.KeyFile != "" })
	if !inFiles {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(keysEvery)
	defer tick.Stop()
	last, _ := authKeys(keys)
	complained := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, err := authKeys(keys)
		if err == nil && slices.EqualFunc(now, last, func(a, b auth.Key) bool { return a.Hash == b.Hash }) {
			complained = ""
			continue
		}
		if err == nil {
			err = ring.Replace(now)
		}
		if err != nil {
			if complained != err.Error() {
				complained = err.Error()
				log.Error("the API keys could not be read again; those before stay in use", "error", err)
			}
			continue
		}
		changed()
		last, complained = now, ""
		log.Info("the API keys were read again")
	}
}
