package adminserver

import (
	"errors"
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
	list, err := loadTokens(configured, nil)
	if err != nil {
		return err
	}
	l.replaceTokens(list)
	l.configured = configured
	return nil
}

// ReloadFiles reads the token files again and reports whether a token has changed. A token whose file cannot be read stays.
func (l *TokenLoader) ReloadFiles() (changed bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.ContainsFunc(l.configured, func(t ConfiguredToken) bool { return t.HasFile }) {
		return false, nil
	}
	list, err := loadTokens(l.configured, l.loaded)
	return l.replaceTokens(list), err
}

// loadTokens returns the configured tokens. After an error it continues with the previous token in the same place, if there are
// any.
func loadTokens(configured []ConfiguredToken, previous []Token) ([]Token, error) {
	list := make([]Token, len(configured))
	var errs []error
	for i, t := range configured {
		token, err := t.Load()
		if err != nil {
			errs = append(errs, err)
			if previous != nil {
				token = previous[i]
			}
		}
		list[i] = token
	}
	return list, errors.Join(errs...)
}

func (l *TokenLoader) replaceTokens(list []Token) (changed bool) {
	if slices.Equal(list, l.loaded) {
		return false
	}
	l.tokens.Replace(list)
	l.loaded = list
	return true
}
