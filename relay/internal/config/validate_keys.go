package config

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/yamldoc"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/clientaddr"
)

// knownCapabilities returns the capabilities that a key may have besides reading its hubs.
func knownCapabilities() []string {
	return []string{"notifications-publish", "containers-instances-migrate"}
}

// checkKeys checks each API key. Names and keys must be unique.
func (l *loader) checkKeys(a *Auth, catalog *relay.Catalog) {
	keys := a.Keys
	if _, given := l.Origins["auth.keys"]; !given && len(keys) == 0 && !a.JWT.Enabled() && a.Forward.URL == "" {
		l.Error("auth.keys", "is missing, so no client could connect",
			"make a key with 'hubrelay keys new', or write [] to create keys in the running relay")
		return
	}
	names, digests := map[string]int{}, map[[32]byte]int{}
	for i, k := range keys {
		path := fmt.Sprintf("auth.keys[%d]", i)
		l.checkAPIKey(path, k)
		if !l.HasErrors(path + ".topics") {
			checkTopics(path, k.Topics, catalog, l.Warn) // a key may prepare for topics that are added later
		}
		if first, twice := names[k.Name]; twice && k.Name != "" {
			l.Error(path+".name", fmt.Sprintf("%q is already the name of auth.keys[%d]", k.Name, first),
				"give each key its own name")
		} else {
			names[k.Name] = i
		}
		if l.HasErrors(path) {
			continue
		}
		if k.SAN != "" {
			continue
		}
		digest, err := k.SHA256()
		if err != nil {
			l.Error(path+".key_file", err.Error(), "make a key with 'hubrelay keys new'")
			continue
		}
		if first, twice := digests[digest]; twice {
			l.Error(path, fmt.Sprintf("is the same key as auth.keys[%d]", first), "use each key only once")
			continue
		}
		digests[digest] = i
	}
}

// CheckKey checks everything but the secret of a key, in the same way as for a key of the configuration. A topic pattern that
// matches no topic of the catalog is an error.
func CheckKey(k Key, catalog *relay.Catalog) error {
	const path = "key"
	l := &loader{converter: &converter{Reporter: &yamldoc.Reporter{}}}
	l.checkKeyFields(path, k, false)
	for i := range l.Problems {
		l.Problems[i].Path = strings.TrimPrefix(l.Problems[i].Path, path+".")
	}
	if len(l.Problems) > 0 {
		return yamldoc.Problems(l.Problems)
	}
	return catalog.CheckPatterns(k.Topics)
}

func (l *loader) checkAPIKey(path string, k Key) {
	broken := l.HasErrors(path) // After an error in the form, a key would seem to be missing.
	switch c := k.credential(); {
	case broken:
	case k.SAN == "":
		l.checkCredential(path, c, "make a key with 'hubrelay keys new'")
	case c.text+c.file+c.hash != "":
		l.Error(path+".san", "conflicts with the secret of the key", "use two keys, one with san and one with a secret")
	}
	l.checkKeyFields(path, k, broken)
}

// checkKeyFields checks everything but the secret of a key. broken reports whether fields may be missing because of
// another error.
func (l *loader) checkKeyFields(path string, k Key, broken bool) {
	switch {
	case k.Name == "" && !broken:
		l.Error(path+".name", "is missing", "name the key for logs and metrics")
	case k.Name != "" && !isCredentialName(k.Name):
		l.Error(path+".name", fmt.Sprintf("%q is not a valid key name", relay.Truncate(k.Name, maxQuoted)),
			"use 1 to 63 of A-Z, a-z, 0-9, ., _ and -")
	}
	l.checkPublishing(path, k)
	if len(k.Hubs) == 0 && !broken {
		l.Error(path+".hubs", "is empty, so the key gives no access", `list its hubs, or write ["*"] for all`)
	}
	for i, h := range k.Hubs {
		if problem := checkIdentifier(h); problem != "" {
			l.Error(fmt.Sprintf("%s.hubs[%d]", path, i), problem, "")
		}
	}
	if k.AccountID != "" {
		if problem := checkIdentifier(k.AccountID); problem != "" {
			l.Error(path+".account_id", problem, "")
		}
	}
	for i, c := range k.Capabilities {
		if slices.Contains(knownCapabilities(), c) {
			continue
		}
		hint := yamldoc.DidYouMean(c, knownCapabilities())
		if hint == "" {
			hint = "the capabilities are " + strings.Join(knownCapabilities(), " and ")
		}
		l.Error(fmt.Sprintf("%s.capabilities[%d]", path, i),
			fmt.Sprintf("%q is not a capability", relay.Truncate(c, maxQuoted)), hint)
	}
	if !k.Expires.IsZero() && time.Now().After(k.Expires) {
		l.Warn(path+".expires", fmt.Sprintf("the key %q has expired", k.Name), "remove it or extend it")
	}
}

func (l *loader) checkPublishing(path string, k Key) {
	for i, pattern := range k.Topics {
		if _, err := relay.ParsePatterns([]string{pattern}); err != nil {
			l.Error(fmt.Sprintf("%s.topics[%d]", path, i), err.Error(), "")
		}
	}
	if len(k.Topics) > 0 && !slices.Contains(k.Capabilities, auth.CapabilityPublish) {
		l.Warn(path+".topics", "has no effect, because the key may not publish", "add "+auth.CapabilityPublish+" to its capabilities")
	}
	for i, network := range k.Networks {
		if _, err := clientaddr.ParseNetworks([]string{network}); err != nil {
			l.Error(fmt.Sprintf("%s.networks[%d]", path, i),
				fmt.Sprintf("%q is not a network", relay.Truncate(network,
					maxQuoted)), "write 192.0.2.0/24 or 192.0.2.7")
		}
	}
}

// checkCredential checks that exactly one part of a key or token is set. It never prints the secret.
func (l *loader) checkCredential(path string, c credential, hint string) {
	given := 0
	for _, s := range []string{c.text, c.file, c.hash} {
		if s != "" {
			given++
		}
	}
	names := fmt.Sprintf("%[1]s, %[1]s_file and %[1]s_sha256", c.kind)
	switch {
	case given == 0:
		l.Error(path, "has no "+c.kind, "set one of "+names+"; "+hint)
	case given > 1:
		l.Error(path, "has more than one of "+names, "set exactly one")
	case c.text != "":
		if err := checkKey(c.text); err != nil {
			l.Error(path+"."+c.kind, err.Error(), hint)
		}
	case c.hash != "":
		if b, err := hex.DecodeString(c.hash); err != nil || len(b) != 32 {
			l.Error(path+"."+c.kind+"_sha256", "is not 64 hexadecimal digits",
				"printf %s "+strings.ToUpper(c.kind)+" | sha256sum")
		}
	}
}

// isCredentialName reports whether the name of a key or token has 1 to 63 letters, digits, ".", "_" and "-", and starts
// with a letter or digit.
func isCredentialName(name string) bool {
	const alphanumeric = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	return len(name) <= 63 && strings.Trim(name, alphanumeric+"._-") == "" && strings.IndexAny(name, alphanumeric) == 0
}
