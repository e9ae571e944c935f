package daemon

import (
	"slices"
	"sync"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay/internal/adminserver"
	"github.com/hubrelay/hubrelay/relay/internal/config"
)

// logins updates the tokens of the admin listener from the configuration and the token files. It may be used
// concurrently.
type logins struct {
	tokens adminserver.Tokens

	mu         sync.Mutex
	configured []config.AdminToken
	last       []adminserver.Token
}

func newLogins(configured []config.AdminToken) (*logins, error) {
	l := &logins{}
	return l, l.configure(configured)
}

// configure replaces the tokens. After an error the previous tokens stay in use.
func (l *logins) configure(configured []config.AdminToken) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.replace(configured); err != nil {
		return err
	}
	l.configured = configured
	return nil
}

// reread reads the token files again and reports whether a token has changed. After an error the previous tokens
// stay in use.
func (l *logins) reread() (changed bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.ContainsFunc(l.configured, func(t config.AdminToken) bool { return t.TokenFile != "" }) {
		return false, nil
	}
	return l.replace(l.configured)
}

func (l *logins) replace(configured []config.AdminToken) (changed bool, err error) {
	list := make([]adminserver.Token, 0, len(configured))
	for _, t := range configured {
		hash, err := t.Digest()
		if err != nil {
			return false, err
		}
		list = append(list, adminserver.Token{Name: t.Name, Role: adminapi.Role(t.Role), Hash: hash})
	}
	if slices.Equal(list, l.last) {
		return false, nil
	}
	l.tokens.Replace(list)
	l.last = list
	return true, nil
}
