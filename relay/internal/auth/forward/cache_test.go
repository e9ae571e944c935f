package forward

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
)

// An account with many or large decisions removes only its own, whether they fill the memory or the number of credentials.
func TestDecisionCache_AccountDisplacesOnlyItsOwnDecisions(t *testing.T) {
	t.Parallel()
	ofOwner := func(account string, hubs ...string) *auth.Key {
		return &auth.Key{Name: "n", AccountID: account, Hubs: hubs, External: true}
	}
	wide := slices.Repeat([]string{"hub-0123456789"}, 400)
	for _, test := range []struct {
		name string
		hub  string
		key  *auth.Key
	}{
		{"large hubs", strings.Repeat("h", 8000), ofOwner("hostile")},
		{"many hubs", "", ofOwner("hostile", slices.Repeat(wide, 10)...)},
		{"many credentials", "h", ofOwner("hostile")},
		{"no account", strings.Repeat("h", 8000), ofOwner("")},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := newDecisionCache()
			for i := range 20 {
				account := fmt.Sprint("quiet ", i)
				c.addKey(apikey.HashOf(account), "h", ofOwner(account, "h"))
				c.addKey(apikey.HashOf(account), "", ofOwner(account, wide...))
			}
			count := max(2*maxCacheBytes/decisionBytes(test.hub, test.key), 2*maxCredentials)
			for i := range min(count, 25_000) {
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

// Many accounts with one credential each displace one another one by one.
func TestDecisionCache_LimitsCredentials(t *testing.T) {
	t.Parallel()
	c := newDecisionCache()
	add := func(i int, hub string) {
		c.addKey(apikey.HashOf(fmt.Sprint(i)), hub, &auth.Key{AccountID: fmt.Sprint(i)})
	}
	for i := range maxCredentials {
		add(i, "h")
	}
	add(0, "h")
	add(0, "other")
	if len(c.keys) != maxCredentials {
		t.Errorf("got %d credentials, want all while no other one is added", len(c.keys))
	}
	for i := range 10 {
		add(maxCredentials+i, "h")
	}
	if len(c.keys) != maxCredentials || len(c.owners) != maxCredentials || c.findKey(apikey.HashOf(fmt.Sprint(maxCredentials+9)), "h") == nil {
		t.Errorf("got %d credentials of %d accounts, want the maximum with the last one", len(c.keys), len(c.owners))
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
