package keystore

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/internal/redistest"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

var noon = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

func newTestStore(t *testing.T) *Store {
	t.Helper()
	s := NewStore(conntest.Open(t, redistest.Start(t), redisconn.Options{}))
	s.now = func() time.Time { return noon }
	return s
}

// find returns the stored key with a secret.
func find(t *testing.T, s *Store, secret string) (found auth.Key, version string) {
	t.Helper()
	list, version, err := s.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range list {
		if k.Hash == apikey.HashOf(secret) {
			found = k
		}
	}
	return found, version
}

func TestStore(t *testing.T) {
	t.Parallel()
	s, ctx := newTestStore(t), t.Context()
	spec := Spec{
		AccountID: "acme", Hubs: []string{"hub-1"}, Capabilities: []string{"notifications-publish"},
		Topics: []string{"job.*"}, Networks: []string{"10.0.0.0/8"}, Expires: noon.Add(24 * time.Hour),
	}
	first, err := s.Create(ctx, "ci", spec)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(ctx, "ci", spec); !errors.Is(err, ErrExists) {
		t.Errorf("a second key with this name: got error %v, want ErrExists", err)
	}
	k, version := find(t, s, first)
	if k.Name != "ci" || k.AccountID != "acme" || !slices.Equal(k.Hubs, spec.Hubs) || !k.Topics.Match("job.created") ||
		k.Topics.Match("hub.created") || len(k.Networks) != 1 || !k.Expires.Equal(spec.Expires) || k.Superseded {
		t.Errorf("got key %+v", k)
	}
	raw, err := s.client.HGetAll(ctx, s.keys).Result()
	if err != nil || strings.Contains(raw["ci"], first) || strings.Contains(raw["ci"], first[4:]) {
		t.Errorf("Redis contains the secret: %v %v", raw, err)
	}

	second, rotated, err := s.Rotate(ctx, "ci", time.Hour)
	if err != nil || !rotated.PreviousExpires.Equal(noon.Add(time.Hour)) {
		t.Fatalf("Rotate() = %+v, %v", rotated, err)
	}
	k, changed := find(t, s, second)
	if k.Superseded || changed == version {
		t.Errorf("got key %+v, version %q after %q", k, changed, version)
	}
	if k, _ := find(t, s, first); !k.Superseded || !k.Expires.Equal(noon.Add(time.Hour)) {
		t.Errorf("the old secret is %+v, want one for an hour", k)
	}
	third, rotated, err := s.Rotate(ctx, "ci", 48*time.Hour)
	if err != nil || !rotated.PreviousExpires.Equal(spec.Expires) {
		t.Errorf("an overlap beyond the expiry: %+v, %v", rotated, err)
	}
	if k, _ := find(t, s, first); k.Name != "" {
		t.Errorf("the oldest secret is still valid: %+v", k)
	}
	if _, _, err = s.Rotate(ctx, "ci", 0); err != nil {
		t.Fatal(err)
	}
	if k, _ := find(t, s, third); k.Name != "" {
		t.Errorf("a secret is valid without an overlap: %+v", k)
	}
	if list, err := s.List(ctx); err != nil || len(list) != 1 || list[0].Name != "ci" ||
		!list[0].RotatedAt.Equal(noon) {
		t.Errorf("List() = %+v, %v", list, err)
	}

	if err := s.RecordUse(ctx, map[string]int64{"ci": noon.Unix()}); err != nil {
		t.Fatal(err)
	}
	if used, err := s.LastUsed(ctx); err != nil || !used["ci"].Equal(noon) {
		t.Errorf("LastUsed() = %v, %v", used, err)
	}
	before, err := s.Version(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Revoke(ctx, "ci"); err != nil {
		t.Fatal(err)
	}
	if after, err := s.Version(ctx); err != nil || after == before {
		t.Errorf("Version() = %q, %v, want a new one", after, err)
	}
	for what, err := range map[string]error{
		"revoke again": s.Revoke(ctx, "ci"), "revoke the version": s.Revoke(ctx, versionField),
		"rotate": func() error { _, _, err := s.Rotate(ctx, "ci", 0); return err }(),
	} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: got error %v, want ErrNotFound", what, err)
		}
	}
}

// A full Redis must not prevent the revocation of a key.
func TestRevoke_FullRedis(t *testing.T) {
	t.Parallel()
	s, ctx := newTestStore(t), t.Context()
	if _, err := s.Create(ctx, "ci", Spec{Hubs: []string{"*"}}); err != nil {
		t.Fatal(err)
	}
	if err := s.client.ConfigSet(ctx, "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(ctx, "other", Spec{Hubs: []string{"*"}}); !errors.Is(err, redisconn.ErrUnavailable) {
		t.Errorf("create: got error %v, want ErrUnavailable", err)
	}
	if err := s.Revoke(ctx, "ci"); err != nil {
		t.Error(err)
	}
	if list, err := s.List(ctx); err != nil || len(list) != 0 {
		t.Errorf("List() = %+v, %v, want none", list, err)
	}
}
