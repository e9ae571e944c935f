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

// Credentials with many hubs cannot fill the memory, and cannot remove small decisions.
func TestDecisionCache_LimitsBytes(t *testing.T) {
	t.Parallel()
	c := newDecisionCache()
	small := apikey.HashOf("small")
	c.addKey(small, "h", &auth.Key{Name: "small", Hubs: []string{"h"}})
	large := &auth.Key{Name: "large", Hubs: slices.Repeat([]string{"hub-0123456789"}, 3000)}
	for i := range 100_000 { // a client chooses the hub
		c.addKey(apikey.HashOf(fmt.Sprint("many", i)), strings.Repeat("h", 8000), &auth.Key{})
		if c.bytes > maxCacheBytes || c.bytes < 8000*len(c.keys)/2 {
			t.Fatalf("got %d bytes of %d decisions", c.bytes, len(c.keys))
		}
		if i > 2*maxCacheBytes/8000 {
			break
		}
	}
	c.addKey(small, "h", &auth.Key{Name: "small", Hubs: []string{"h"}})
	for i := range 2 * maxCacheBytes / large.MemoryBytes() {
		c.addKey(apikey.HashOf(fmt.Sprint(i)), "", large)
		c.addKey(apikey.HashOf(fmt.Sprint(i)), "", large) // the same decision again
		if c.bytes > maxCacheBytes {
			t.Fatalf("got %d bytes, want at most %d", c.bytes, maxCacheBytes)
		}
	}
	if c.findKey(small, "h") == nil {
		t.Error("the small decision was removed")
	}
	for id, byHub := range c.keys {
		for hub := range byHub {
			c.removeKey(id, hub)
		}
	}
	if c.bytes != 0 || len(c.keys) != 0 {
		t.Errorf("got %d bytes and %d credentials, want none", c.bytes, len(c.keys))
	}
}

// Small decisions have a limit too.
func TestDecisionCache_LimitsCredentials(t *testing.T) {
	t.Parallel()
	c := newDecisionCache()
	key := &auth.Key{Name: "a"}
	for i := range maxCredentials {
		c.addKey(apikey.HashOf(fmt.Sprint(i)), "h", key)
	}
	c.addKey(apikey.HashOf("0"), "h", key)
	c.addKey(apikey.HashOf("0"), "other", key)
	if len(c.keys) != maxCredentials {
		t.Errorf("got %d credentials, want all while no other one is added", len(c.keys))
	}
	c.addKey(apikey.HashOf("new"), "h", key)
	if len(c.keys) != 1 || c.bytes != decisionBytes("h", key) {
		t.Errorf("got %d credentials with %d bytes, want the last one", len(c.keys), c.bytes)
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
