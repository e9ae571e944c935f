package config

import (
	"fmt"

	"github.com/hubrelay/hubrelay/relay"
)

// checkAdmin checks the admin listener. A TCP address without tokens is an error, because any client could change
// everything.
func (l *loader) checkAdmin(c *Config) {
	a := &c.Admin
	l.checkAdminTokens(a.Tokens)
	l.checkTLS("admin.tls", &a.TLS)
	if a.Listen == "" {
		if len(a.Tokens) > 0 || a.TLS.Enabled() {
			l.Warn("admin", "tokens and tls have no effect without admin.listen",
				"set admin.listen to host:port, or remove them: the unix socket needs no login")
		}
		return
	}
	l.checkListen("admin.listen", a.Listen)
	switch {
	case len(a.Tokens) == 0 && !l.HasErrors("admin.tokens"):
		l.Error("admin.listen", "is a TCP address and requires admin.tokens",
			"remove admin.listen to use a unix socket, or add a token with 'hubrelay keys new --admin'")
	case (a.Listen == c.Server.Listen || a.Listen == c.Health.Listen) && !isAnyPort(a.Listen):
		l.Error("admin.listen", "is also the address of another listener", "give each listener its own port")
	case !isLoopback(a.Listen) && !a.TLS.Enabled():
		l.Warn("admin.listen", "is reachable from other machines without TLS, so tokens travel unencrypted",
			"set admin.tls, or keep it on 127.0.0.1")
	}
}

func (l *loader) checkAdminTokens(tokens []AdminToken) {
	names, digests := map[string]int{}, map[[32]byte]int{}
	for i, t := range tokens {
		path := fmt.Sprintf("admin.tokens[%d]", i)
		l.checkAdminToken(path, t)
		if l.HasErrors(path) {
			continue
		}
		digest, err := t.Digest()
		if err != nil {
			l.Error(path+".token_file", err.Error(), "make a token with 'hubrelay keys new --admin'")
			continue
		}
		if first, ok := names[t.Name]; ok {
			l.Error(path+".name", fmt.Sprintf("%q is also the name of admin.tokens[%d]", t.Name, first),
				"give each token its own name")
		}
		if first, ok := digests[digest]; ok {
			l.Error(path, fmt.Sprintf("is the same token as admin.tokens[%d]", first), "give each token its own secret")
		}
		names[t.Name], digests[digest] = i, i
	}
}

func (l *loader) checkAdminToken(path string, t AdminToken) {
	if l.HasErrors(path) { // After an error in the form, a key would seem to be missing.
		return
	}
	switch {
	case t.Name == "":
		l.Error(path+".name", "is missing", "name the token for the logs")
	case !isCredentialName(t.Name):
		l.Error(path+".name", fmt.Sprintf("%q is not a valid token name", relay.Truncate(t.Name, maxQuoted)),
			"use 1 to 63 of A-Z, a-z, 0-9, ., _ and -")
	}
	if t.Role == "" {
		l.Error(path+".role", "is missing", "choose viewer, operator or admin")
	}
	l.checkCredential(path, t.credential(), "make a token with 'hubrelay keys new --admin'")
}
