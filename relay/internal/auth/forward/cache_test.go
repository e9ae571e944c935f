package forward

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
)

// An account with many or large decisions removes only its own, whether they fill the memory or the number of credentials.
func TestDecisionCache_AccountDisplacesOnlyItsOwnDecisions(t *testing.T) {
	t.Parallel()
	now := time.Now()
	newKey := func(name, account string, hubs ...string) *auth.Key {
		return &auth.Key{
			Name: name, AccountID: account, Hubs: hubs, External: true, VerifiedAt: now, Expires: now.Add(time.Hour),
			LastUsed: new(atomic.Int64),
		}
	}
	wide := slices.Repeat([]string{"hub-0123456789"}, 400)
	for _, test := range []struct {
		name string
		hub  string
		key  *auth.Key
	}{
		{"large hubs", strings.Repeat("h", 8000), newKey("hostile", "hostile")},
		{"many hubs", "", newKey("hostile", "hostile", slices.Repeat(wide, 10)...)},
		{"many credentials", "h", newKey("hostile", "hostile")},
		{"no account", strings.Repeat("h", 8000), newKey("hostile", "")},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := newDecisionCache(time.Hour)
			for i := range 20 {
				account := fmt.Sprint("quiet ", i)
				if test.key.AccountID == "" {
					account = ""
				}
				name := fmt.Sprint("quiet ", i)
				c.addKey(apikey.HashOf(name), "h", newKey(name, account, "h"))
				c.addKey(apikey.HashOf(name), "", newKey(name, account, wide...))
			}
			count := max(2*maxCacheBytes/decisionBytes(test.hub, test.key), 2*maxCredentials)
			for i := range min(count, 16_000) {
				for range 2 { // the second one replaces the first
					c.addKey(apikey.HashOf(fmt.Sprint(i)), test.hub, test.key)
				}
				if c.bytes > maxCacheBytes || len(c.keys) > maxCredentials {
					t.Fatalf("got %d bytes of %d credentials", c.bytes, len(c.keys))
				}
			}
			for i := range 20 {
				id := apikey.HashOf(fmt.Sprint("quiet ", i))
				if c.findKey(id, "h") == nil || c.findKey(id, "") == nil {
					t.Errorf("decisions of another account were removed (%d)", i)
				}
			}
			if c.bytes < maxCacheBytes*3/4 && len(c.keys) < maxCredentials*3/4 {
				t.Errorf("only %d bytes of %d credentials are left", c.bytes, len(c.keys))
			}
			for id, byHub := range c.keys {
				for hub := range byHub {
					c.removeKey(id, hub)
				}
			}
			if c.bytes != 0 || len(c.keys) != 0 || len(c.owners) != 0 {
				t.Errorf("got %d bytes, %d credentials and %d owners, want none", c.bytes, len(c.keys), len(c.owners))
			}
		})
	}
}

// Many accounts with few credentials each displace first expired decisions, then credentials that were not used recently.
func TestDecisionCache_LimitsCredentials(t *testing.T) {
	t.Parallel()
	c, start := newDecisionCache(time.Hour), time.Now()
	add := func(i int, account string, at time.Time, lifetime time.Duration) {
		key := &auth.Key{
			Name: "n", AccountID: account, VerifiedAt: at, Expires: at.Add(lifetime), LastUsed: new(atomic.Int64),
		}
		key.LastUsed.Store(at.Unix())
		c.addKey(apikey.HashOf(fmt.Sprint(i)), "h", key)
	}
	quiet := func() (count int) {
		for i := range ownCredentials {
			if c.findKey(apikey.HashOf(fmt.Sprint(i)), "h") != nil {
				count++
			}
		}
		return count
	}
	for i := range ownCredentials {
		add(i, "quiet", start, time.Hour)
	}
	for i := ownCredentials; i < maxCredentials; i++ {
		add(i, fmt.Sprint(i), start, time.Second)
	}
	add(0, "quiet", start, time.Hour)
	if len(c.keys) != maxCredentials {
		t.Errorf("got %d credentials, want all while no other one is added", len(c.keys))
	}
	add(maxCredentials, "new", start.Add(time.Second), time.Minute)
	if len(c.keys) != ownCredentials+1 || quiet() != ownCredentials {
		t.Errorf("got %d credentials, want those that have not expired", len(c.keys))
	}
	for i := range ownCredentials {
		c.findKey(apikey.HashOf(fmt.Sprint(i)), "h").LastUsed.Store(start.Add(3 * time.Second).Unix())
	}
	for i := range maxCredentials {
		add(maxCredentials+i, fmt.Sprint(i), start.Add(2*time.Second), time.Hour)
	}
	for i := range 1000 {
		add(2*maxCredentials+i, fmt.Sprint("other ", i), start.Add(3*time.Second), time.Hour)
	}
	if n := len(c.keys); n > maxCredentials || n < maxCredentials*9/10 || quiet() < ownCredentials-1 {
		t.Errorf("got %d credentials, and %d of the account that uses %d of them", n, quiet(), ownCredentials)
	}
}

// The decision for a hub does not contain the other hubs of the credential.
func TestVerifier_LimitsDecisionToHub(t *testing.T) {
	t.Parallel()
	e, now := newEndpoint(t), time.Now()
	e.body.Store(`{"name":"a","hubs":["hub-1","hub-2"]}`)
	v := newTestVerifier(e.URL, &now)
	for hub, want := range map[string][]string{"": {"hub-1", "hub-2"}, "hub-2": {"hub-2"}, "hub-3": nil} {
		key, err := v.Verify(t.Context(), "good", hub, testAddr)
		if err != nil || !slices.Equal(key.Hubs, want) {
			t.Errorf("hub %q: got %+v, %v, want the hubs %q", hub, key, err, want)
		}
	}
}
