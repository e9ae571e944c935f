package daemon

import (
	"context"
	"errors"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/yamldoc"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/adminserver"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/auth/keymanager"
	"github.com/hubrelay/hubrelay/relay/internal/auth/keystore"
	"github.com/hubrelay/hubrelay/relay/internal/clientaddr"
	"github.com/hubrelay/hubrelay/relay/internal/clients"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/lifecycle"
)

// startKeyManager loads the keys that were created at run time, and follows their changes.
func (d *Daemon) startKeyManager(
	ctx context.Context, group *lifecycle.Group, s *stores, streamServer *clients.Server,
) (*keymanager.Manager, error) {
	m, err := keymanager.NewManager(ctx, keymanager.Options{
		Keys: d.keys, Store: keystore.NewStore(s.conn), CheckSpec: d.checkKeySpec, OnChanged: streamServer.RecheckKeys, Log: d.log,
	})
	if err == nil {
		group.Start(ctx, "stored API keys", m.Run)
	}
	return m, err
}

// checkKeySpec applies the rules of the configuration to a key that is created at run time.
func (d *Daemon) checkKeySpec(name string, spec adminapi.KeySpec) error {
	err := config.CheckKey(config.Key{
		Name: name, AccountID: spec.AccountID, Hubs: spec.Hubs, Capabilities: spec.Capabilities, Topics: spec.Topics,
		Networks: spec.Networks, Expires: spec.ExpiresAt,
	}, d.catalog)
	var problems yamldoc.Problems
	if errors.As(err, &problems) {
		return errors.New(describeProblems(err)) // on one line
	}
	return err
}

func configuredKeys(keys []config.Key) []keymanager.ConfiguredKey {
	list := make([]keymanager.ConfiguredKey, len(keys))
	for i, k := range keys {
		list[i] = keymanager.ConfiguredKey{
			Name: k.Name, HasFile: k.KeyFile != "", Load: func() (auth.Key, error) { return newAuthKey(k) },
			Spec: adminapi.KeySpec{
				AccountID: k.AccountID, Hubs: append([]string{}, k.Hubs...), Capabilities: k.Capabilities, Topics: k.Topics,
				Networks: k.Networks, ExpiresAt: k.Expires,
			},
		}
	}
	return list
}

func newAuthKey(k config.Key) (key auth.Key, err error) {
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

func configuredTokens(tokens []config.AdminToken) []adminserver.ConfiguredToken {
	list := make([]adminserver.ConfiguredToken, len(tokens))
	for i, t := range tokens {
		list[i] = adminserver.ConfiguredToken{HasFile: t.TokenFile != "", Load: func() (adminserver.Token, error) {
			hash, err := t.Digest()
			return adminserver.Token{Name: t.Name, Role: adminapi.Role(t.Role), Hash: hash}, err
		}}
	}
	return list
}
