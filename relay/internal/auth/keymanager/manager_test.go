package keymanager

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/auth/keystore"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const configuredSecret = "configured-0123456789"

var spec = adminapi.KeySpec{AccountID: "acme", Hubs: []string{"h"}}

// configured returns a key of the configuration.
func configured(name string) ConfiguredKey {
	return ConfiguredKey{Name: name, Spec: spec, Load: func() (auth.Key, error) {
		return auth.Key{Name: name, Hash: apikey.HashOf(configuredSecret), Hubs: []string{"h"}}, nil
	}}
}

// node is a node with one configured key.
type node struct {
	*Manager
	keys    *Keys
	auth    *auth.Authenticator
	changes chan struct{}
}

func startNode(t *testing.T, server *redistest.Server) *node {
	t.Helper()
	keys, err := NewKeys([]ConfiguredKey{configured("ops")})
	if err != nil {
		t.Fatal(err)
	}
	n := &node{
		keys: keys, auth: auth.NewAuthenticator(auth.AuthenticatorOptions{Keys: keys.Keyring()}),
		changes: make(chan struct{}, 100),
	}
	n.Manager, err = NewManager(t.Context(), Options{
		Keys: keys, Store: keystore.NewStore(conntest.Open(t, server, redisconn.Options{})),
		CheckSpec: func(name string, _ adminapi.KeySpec) error {
			if name == "bad" {
				return errors.New("the name is bad")
			}
			return nil
		},
		OnChanged: func() { n.changes <- struct{}{} }, Log: testkit.Log(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// accepts reports whether the node accepts a secret.
func (n *node) accepts(t *testing.T, secret string) bool {
	t.Helper()
	_, err := n.auth.Authenticate(t.Context(), auth.Request{Authorization: []string{"Bearer " + secret}})
	return err == nil
}

func TestManager_AppliesChangesToAllNodes(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	one, two := startNode(t, server), startNode(t, server)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- two.Run(ctx) }()
	created, err := one.Create(t.Context(), "ci", spec)
	if err != nil {
		t.Fatal(err)
	}
	if !one.accepts(t, created.Key) {
		t.Error("the node that created the key rejects it")
	}
	testkit.WaitFor(t, "the other node to accept the key", func() bool { return two.accepts(t, created.Key) })
	rotated, err := one.Rotate(t.Context(), "ci", 0)
	if err != nil {
		t.Fatal(err)
	}
	if one.accepts(t, created.Key) || !one.accepts(t, rotated.Key) {
		t.Error("the old secret is valid after the rotation, or the new one is not")
	}
	if err := one.Revoke(t.Context(), "ci"); err != nil {
		t.Fatal(err)
	}
	if one.accepts(t, rotated.Key) || len(one.changes) != 3 {
		t.Errorf("the revoked key is accepted, or got %d changes instead of 3", len(one.changes))
	}
	testkit.WaitFor(t, "the other node to reject the key", func() bool { return !two.accepts(t, rotated.Key) })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestManager_RejectsChanges(t *testing.T) {
	t.Parallel()
	n := startNode(t, redistest.Start(t))
	expired := spec
	expired.ExpiresAt = time.Now().Add(-time.Minute)
	if _, err := n.Create(t.Context(), "ci", spec); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(context.Context) error
		want   relay.Code
	}{
		"create a configured key": {func(ctx context.Context) error {
			_, err := n.Create(ctx, "ops", spec)
			return err
		}, relay.CodeInvalidState},
		"create a stored key again": {func(ctx context.Context) error {
			_, err := n.Create(ctx, "ci", spec)
			return err
		}, relay.CodeInvalidState},
		"create with invalid permissions": {func(ctx context.Context) error {
			_, err := n.Create(ctx, "bad", spec)
			return err
		}, relay.CodeInvalidArgument},
		"create an expired key": {func(ctx context.Context) error {
			_, err := n.Create(ctx, "late", expired)
			return err
		}, relay.CodeInvalidArgument},
		"rotate a configured key": {func(ctx context.Context) error {
			_, err := n.Rotate(ctx, "ops", 0)
			return err
		}, relay.CodeInvalidState},
		"rotate with a long overlap": {func(ctx context.Context) error {
			_, err := n.Rotate(ctx, "ci", maxOverlap+time.Second)
			return err
		}, relay.CodeInvalidArgument},
		"rotate an unknown key": {func(ctx context.Context) error {
			_, err := n.Rotate(ctx, "nobody", 0)
			return err
		}, relay.CodeNoKey},
		"revoke a configured key": {func(ctx context.Context) error { return n.Revoke(ctx, "ops") }, relay.CodeInvalidState},
		"revoke an unknown key":   {func(ctx context.Context) error { return n.Revoke(ctx, "nobody") }, relay.CodeNoKey},
		"revoke by the secret":    {func(ctx context.Context) error { return n.Revoke(ctx, configuredSecret) }, relay.CodeNoKey},
	} {
		var got *relay.Error
		if err := c.change(t.Context()); !errors.As(err, &got) || got.Code != c.want {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
		if strings.Contains(got.Detail, configuredSecret) {
			t.Errorf("%s: the error repeats the secret of a key: %v", name, got)
		}
	}
}

func TestManager_ListsKeysByName(t *testing.T) {
	t.Parallel()
	n := startNode(t, redistest.Start(t))
	if _, err := n.Create(t.Context(), "ci", spec); err != nil {
		t.Fatal(err)
	}
	if !n.accepts(t, configuredSecret) {
		t.Fatal("the configured key was rejected")
	}
	list, err := n.List(t.Context())
	if err != nil || len(list) != 2 {
		t.Fatalf("got %+v, %v, want two keys", list, err)
	}
	if list[1].Name != "ops" || list[1].Origin != adminapi.KeyOriginConfiguration || list[1].LastUsedAt.IsZero() {
		t.Errorf("got %+v, want the used key of the configuration", list[1])
	}
	if list[0].Name != "ci" || list[0].Origin != adminapi.KeyOriginStored || !list[0].LastUsedAt.IsZero() ||
		list[0].CreatedAt.IsZero() {
		t.Errorf("got %+v, want the unused stored key", list[0])
	}
}

// A key that is added to the configuration replaces the stored one with its name.
func TestKeys_PreferConfiguration(t *testing.T) {
	t.Parallel()
	n := startNode(t, redistest.Start(t))
	created, err := n.Create(t.Context(), "ci", spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.keys.SetConfigured([]ConfiguredKey{configured("ci")}); err != nil {
		t.Fatal(err)
	}
	if n.accepts(t, created.Key) || !n.accepts(t, configuredSecret) {
		t.Error("the stored key is valid beside the configured one")
	}
	broken := configured("ci")
	broken.Load = func() (auth.Key, error) { return auth.Key{}, errors.New("no such file") }
	if err := n.keys.SetConfigured([]ConfiguredKey{broken}); err == nil || !n.accepts(t, configuredSecret) {
		t.Errorf("got error %v; the previous keys must stay valid", err)
	}
	if err := n.keys.SetConfigured(nil); err != nil || !n.accepts(t, created.Key) {
		t.Errorf("got error %v; the stored key must be valid again", err)
	}
}

// A key file that cannot be read keeps its own key only: other key files are reloaded, and stored keys are created and revoked.
func TestKeys_UnreadableFile(t *testing.T) {
	t.Parallel()
	n := startNode(t, redistest.Start(t))
	const lostSecret, newSecret = "lost-0123456789012", "rotated-0123456789"
	secret, lostErr := configuredSecret, error(nil)
	rotated := ConfiguredKey{Name: "ops", HasFile: true, Load: func() (auth.Key, error) {
		return auth.Key{Name: "ops", Hash: apikey.HashOf(secret), Hubs: []string{"h"}}, nil
	}}
	lost := ConfiguredKey{Name: "lost", HasFile: true, Load: func() (auth.Key, error) {
		return auth.Key{Name: "lost", Hash: apikey.HashOf(lostSecret), Hubs: []string{"h"}}, lostErr
	}}
	if err := n.keys.SetConfigured([]ConfiguredKey{lost, rotated}); err != nil {
		t.Fatal(err)
	}
	revoked, err := n.Create(t.Context(), "revoked", spec)
	if err != nil {
		t.Fatal(err)
	}
	secret, lostErr = newSecret, errors.New("no such file")
	if err := n.Revoke(t.Context(), "revoked"); err != nil || n.accepts(t, revoked.Key) {
		t.Errorf("the revoked key is valid (%v)", err)
	}
	if created, err := n.Create(t.Context(), "created", spec); err != nil || !n.accepts(t, created.Key) {
		t.Errorf("the created key is not valid (%v)", err)
	}
	if changed, err := n.keys.ReloadFiles(); !changed || !errors.Is(err, lostErr) {
		t.Errorf("got %t, %v, want a change and an error", changed, err)
	}
	if n.accepts(t, configuredSecret) || !n.accepts(t, newSecret) || !n.accepts(t, lostSecret) {
		t.Error("the keys in the files are not the new one and the previous one of the lost file")
	}
}

// While a key file cannot be read to its end, stored keys are revoked and configured ones are removed.
func TestKeys_FileHangs(t *testing.T) {
	t.Parallel()
	n := startNode(t, redistest.Start(t))
	read, release := make(chan struct{}), make(chan struct{})
	var hangs atomic.Bool
	hanging := ConfiguredKey{Name: "ops", HasFile: true, Load: func() (auth.Key, error) {
		if hangs.Load() {
			read <- struct{}{}
			<-release
		}
		return auth.Key{Name: "ops", Hash: apikey.HashOf(configuredSecret), Hubs: []string{"h"}}, nil
	}}
	if err := n.keys.SetConfigured([]ConfiguredKey{hanging}); err != nil {
		t.Fatal(err)
	}
	created, err := n.Create(t.Context(), "ci", spec)
	if err != nil {
		t.Fatal(err)
	}
	hangs.Store(true)
	done := make(chan error, 1)
	go func() {
		_, err := n.keys.ReloadFiles()
		done <- err
	}()
	<-read
	if err := n.Revoke(t.Context(), "ci"); err != nil || n.accepts(t, created.Key) {
		t.Errorf("the revoked key is valid (%v)", err)
	}
	if err := n.keys.SetConfigured(nil); err != nil || n.accepts(t, configuredSecret) {
		t.Errorf("the removed key is valid (%v)", err)
	}
	close(release)
	if err := <-done; err != nil || n.accepts(t, configuredSecret) {
		t.Errorf("the removed key is valid again (%v)", err)
	}
}
