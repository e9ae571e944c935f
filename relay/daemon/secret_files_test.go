package daemon

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/internal/filewatch"
	"github.com/hubrelay/hubrelay/internal/testkit"
	"github.com/hubrelay/hubrelay/relay/internal/adminserver"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/auth/keymanager"
	"github.com/hubrelay/hubrelay/relay/internal/config"
)

// A changed secret file takes effect within a second. A file that cannot be read changes nothing and is logged
// once.
func TestPollSecrets_AppliesChanges(t *testing.T) {
	t.Parallel()
	const first, second = "first-secret-0123456789", "second-secret-0123456789"
	for name, open := range map[string]func(file string) (reread func() (bool, error), works func(secret string) bool){
		"admin tokens": func(file string) (func() (bool, error), func(string) bool) {
			l, err := adminserver.NewTokenLoader(configuredTokens([]config.AdminToken{
				{Name: "ci", Role: "viewer", TokenFile: file},
			}))
			if err != nil {
				t.Fatal(err)
			}
			return l.ReloadFiles, func(secret string) bool {
				r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
				r.Header.Set("Authorization", "Bearer "+secret)
				caller, refused := l.Tokens().Authenticate(r)
				return refused == nil && caller.Name == "ci" && caller.Role == "viewer"
			}
		},
		"API keys": func(file string) (func() (bool, error), func(string) bool) {
			k, err := keymanager.NewKeys(configuredKeys([]config.Key{{Name: "ci", KeyFile: file, Hubs: []string{"*"}}}))
			if err != nil {
				t.Fatal(err)
			}
			a := auth.NewAuthenticator(auth.AuthenticatorOptions{Keys: k.Keyring()})
			return k.ReloadFiles, func(secret string) bool {
				key, refused := a.Authenticate(t.Context(), auth.Request{Authorization: []string{"Bearer " + secret}})
				return refused == nil && key.Hash == apikey.HashOf(secret)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "secret")
			put := func(text string) {
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			put(first)
			reread, works := open(file)
			synctest.Test(t, func(t *testing.T) {
				var log testkit.Buffer
				changes := 0
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() {
					ended <- filewatch.PollSecrets(ctx, slog.New(slog.NewTextHandler(&log, nil)), name, reread,
						func() { changes++ })
				}()
				check := func(step string, wantFirst, wantSecond bool, wantChanges, wantErrors int) {
					t.Helper()
					time.Sleep(time.Minute)
					synctest.Wait()
					if works(first) != wantFirst || works(second) != wantSecond || changes != wantChanges ||
						strings.Count(log.String(), "level=ERROR") != wantErrors {
						t.Errorf("%s: got first %v, second %v, %d changes; want %v, %v, %d and %d errors in\n%s",
							step, works(first), works(second), changes, wantFirst, wantSecond, wantChanges, wantErrors,
							log.String())
					}
				}
				check("unchanged", true, false, 0, 0)
				put("short")
				check("too short", true, false, 0, 1)
				if err := os.Remove(file); err != nil {
					t.Fatal(err)
				}
				check("missing", true, false, 0, 2)
				put(second)
				check("changed", false, true, 1, 2)
				if strings.Contains(log.String(), first) || strings.Contains(log.String(), second) {
					t.Errorf("the log contains a secret:\n%s", log.String())
				}
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// If the tokens of a configuration cannot be read, the previous tokens stay in use.
func TestAdminTokens_KeptAfterError(t *testing.T) {
	t.Parallel()
	const secret = "0123456789abcdef"
	l, err := adminserver.NewTokenLoader(configuredTokens([]config.AdminToken{{Name: "ci", Role: "admin", Token: secret}}))
	if err != nil {
		t.Fatal(err)
	}
	missing := configuredTokens([]config.AdminToken{{Name: "ci", Role: "admin", TokenFile: "/nowhere"}})
	if err := l.SetConfigured(missing); err == nil {
		t.Error("accepted a missing file")
	}
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	r.Header.Set("Authorization", "Bearer "+secret)
	if caller, err := l.Tokens().Authenticate(r); err != nil || caller.Name != "ci" {
		t.Errorf("got %+v, %v, want the previous token", caller, err)
	}
}

// A token whose file cannot be read stays, and others change.
func TestAdminTokens_UnreadableFile(t *testing.T) {
	t.Parallel()
	lost, changed := filepath.Join(t.TempDir(), "lost"), filepath.Join(t.TempDir(), "changed")
	put := func(file, secret string) {
		if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const first, second, third = "first-secret-0123456789", "second-secret-0123456789", "third-secret-0123456789"
	put(lost, first)
	put(changed, second)
	l, err := adminserver.NewTokenLoader(configuredTokens([]config.AdminToken{
		{Name: "lost", Role: "admin", TokenFile: lost}, {Name: "changed", Role: "admin", TokenFile: changed},
	}))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(lost); err != nil {
		t.Fatal(err)
	}
	put(changed, third)
	if updated, err := l.ReloadFiles(); !updated || err == nil {
		t.Errorf("got %t, %v, want a change and an error", updated, err)
	}
	for secret, want := range map[string]bool{first: true, second: false, third: true} {
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.Header.Set("Authorization", "Bearer "+secret)
		if _, err := l.Tokens().Authenticate(r); (err == nil) != want {
			t.Errorf("%s: got %v, want it to be valid: %t", secret, err, want)
		}
	}
}
