package config

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hubrelay/hubrelay/internal/yamldoc"
)

// strongKeyLength is the number of characters below which a key causes a warning. A random key of this length in hex
// cannot be guessed.
const strongKeyLength = 20

// SecurityWarnings returns warnings about settings that work but invite an attack, or record none. It reads the files of keys and
// tokens.
func (c *Config) SecurityWarnings() []Problem {
	l := securityCheck{&yamldoc.Reporter{File: c.file, Origins: c.origins}}
	for i, k := range c.Auth.Keys {
		path := fmt.Sprintf("auth.keys[%d]", i)
		l.warnWeakCredential(path, k.credential())
		if k.AccountID == "" && len(k.Hubs) > 0 && len(k.Capabilities) == 0 {
			l.Warn(path+".account_id", fmt.Sprintf("is missing, so the key %q sees only events "+
				"without an account", k.Name), `name its account, or write "*" for everything in its hubs`)
		}
	}
	for i, t := range c.Admin.Tokens {
		l.warnWeakCredential(fmt.Sprintf("admin.tokens[%d]", i), t.credential())
	}
	if !isLoopback(c.Server.Listen) && !c.Server.TLS.Enabled() && len(c.Server.TrustedProxies) == 0 {
		l.Warn("server.listen", "accepts keys from other machines without TLS",
			"set server.tls, or name the proxy that adds TLS in server.trusted_proxies")
	}
	if c.Audit.File != "" && c.Audit.File != "stdout" {
		if dir := filepath.Dir(c.Audit.File); !isDirectory(dir) {
			l.Warn("audit.file", "cannot be written at present: there is no directory "+dir, "create it, or set another file")
		}
	}
	l.warnPlaintextRedis(c.Redis.URL)
	l.warnReadableFile(c.inlineSecrets)
	return yamldoc.Sorted(l.Warnings)
}

func isDirectory(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

type securityCheck struct{ *yamldoc.Reporter }

// warnWeakCredential warns about a credential that can be guessed. Files that cannot be read now are skipped.
func (s securityCheck) warnWeakCredential(path string, c credential) {
	text, at := c.text, path+"."+c.kind
	if c.file != "" {
		at = path + "." + c.kind + "_file"
		var err error
		if text, err = readSecret(c.file); err != nil {
			return
		}
	}
	switch {
	case text == "":
	case isCommonSecret(text):
		s.Warn(at, "is easy to guess", "make a random one with 'hubrelay keys new'")
	case len(text) < strongKeyLength:
		s.Warn(at, fmt.Sprintf("has fewer than %d characters", strongKeyLength),
			"make a random one with 'hubrelay keys new'")
	}
}

// isCommonSecret reports whether a secret consists of words and series that are tried first, or of one repeated
// character.
func isCommonSecret(s string) bool {
	rest := strings.ToLower(s)
	if strings.Count(rest, rest[:1]) == len(rest) {
		return true
	}
	for _, word := range []string{
		"changeme", "change-me", "password", "passwort", "secret", "hubrelay", "example", "default", "letmein",
		"qwerty",
		"admin", "token", "test", "demo", "key", "api", "my", "the", "your",
		"0123456789abcdef", "1234567890", "0123456789", "123456789", "12345678", "1234567", "123456", "12345", "1234",
		"123",
		"abcdef", "abc",
	} {
		rest = strings.ReplaceAll(rest, word, "")
	}
	return strings.Trim(rest, "-_. 0123456789!") == "" && len(rest) < len(s)/2
}

func (s securityCheck) warnPlaintextRedis(address string) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "redis" && !strings.HasPrefix(u.Scheme, "redis+") || u.Host == "" {
		return
	}
	if host := u.Hostname(); !isLoopback(host + ":0") {
		s.Warn("redis.url", "sends its password and all events unencrypted to another machine",
			"use rediss://, or a network that others cannot read")
	}
}

// warnReadableFile warns if every user of the machine can read a file that contains secrets.
func (s securityCheck) warnReadableFile(inlineSecrets []string) {
	info, err := os.Stat(s.File)
	if err != nil || info.Mode().Perm()&0o004 == 0 {
		return
	}
	for _, path := range inlineSecrets {
		s.Warn(path, "is a secret in a file that every user of this machine can read",
			"chmod o-r "+s.File+", or read the secret from the environment or another file")
	}
}

func (l *loader) checkWebsocket(w *Websocket) {
	checkRange(l, "websocket.queue", w.Queue, 64<<10, 1<<30)
	checkRange(l, "websocket.gather", w.Gather, 0, 50*time.Millisecond)
	checkRange(l, "websocket.compression.min_size", w.Compression.MinSize, 64, 1<<20)
	checkRange(l, "websocket.compression.cpu", w.Compression.CPU, time.Millisecond, 16*time.Second)
	checkRange(l, "websocket.recent", w.Recent, 64<<10, 4<<30)
	checkRange(l, "websocket.ping_interval", w.PingInterval, time.Second, time.Hour)
	checkRange(l, "websocket.pong_timeout", w.PongTimeout, time.Second, time.Hour)
	checkRange(l, "websocket.max_connections", w.MaxConnections, 0, 1<<24)
	checkRange(l, "websocket.max_per_hub", w.MaxPerHub, 0, 1<<24)
	checkRange(l, "websocket.max_per_key", w.MaxPerKey, 0, 1<<24)
	checkRange(l, "websocket.max_per_account", w.MaxPerAccount, 0, 1<<24)
}
