package adminserver

import (
	"slices"
	"sync"
)

// ConfiguredToken is a token of the configuration.
type ConfiguredToken struct {
	// HasFile reports whether the secret is in a file, which may change.
	HasFile bool
	// Load returns the token, and reads the file of the secret.
	Load func() (Token, error)
}

// TokenLoader updates [Tokens] from the configuration and the token files. It may be used concurrently.
type TokenLoader struct {
	tokens Tokens

	mu         sync.Mutex
	configured []ConfiguredToken
	loaded     []Token
}

// NewTokenLoader loads the configured tokens.
func NewTokenLoader(configured []ConfiguredToken) (*TokenLoader, error) {
	l := &TokenLoader{}
	return l, l.SetConfigured(configured)
}

// Tokens returns the authenticator with the current tokens.
func (l *TokenLoader) Tokens() *Tokens { return &l.tokens }

// SetConfigured replaces the tokens. After an error the previous tokens stay in use.
func (l *TokenLoader) SetConfigured(configured []ConfiguredToken) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.replaceTokens(configured); err != nil {
		return err
	}
	l.configured = configured
	return nil
}

// ReloadFiles reads the token files again and reports whether a token has changed. After an error the previous tokens
// stay in use.
func (l *TokenLoader) ReloadFiles() (changed bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.ContainsFunc(l.configured, func(t ConfiguredToken) bool { return t.HasFile }) {
		return false, nil
	}
	return l.replaceTokens(l.configured)
}

func (l *TokenLoader) replaceTokens(configured []ConfiguredToken) (changed bool, err error) {
	list := make([]Token, len(configured))
	for i, t := range configured {
		if list[i], err = t.Load(); err != nil {
			return false, err
		}
	}
	if slices.Equal(list, l.loaded) {
		return false, nil
	}
	l.tokens.Replace(list)
	l.loaded = list
	return true, nil
}
