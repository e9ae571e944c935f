package adminserver

import (
	"slices"
	"sync"

	"github.com/hubrelay/hubrelay/internal/filewatch"
)

// ConfiguredToken is a token of the configuration.
type ConfiguredToken struct {
	// HasFile reports whether the secret is in a file, which may change.
	HasFile bool
	// Load returns the token, and reads the file of the secret.
	Load func() (Token, error)
}

// TokenLoader updates [Tokens] from the configuration and the token files. One goroutine may call SetConfigured, and one
// ReloadFiles.
type TokenLoader struct {
	tokens Tokens

	mu         sync.Mutex
	configured []ConfiguredToken
	changes    int // calls of SetConfigured
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
	list, err := filewatch.LoadEach(configured, loadToken, nil) // without the lock, as for keys
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.replaceTokens(list)
	l.configured = configured
	l.changes++
	return nil
}

// ReloadFiles reads the token files again and reports whether a token has changed. A token whose file cannot be read stays.
func (l *TokenLoader) ReloadFiles() (changed bool, err error) {
	l.mu.Lock()
	configured, previous, changes := l.configured, l.loaded, l.changes
	l.mu.Unlock()
	if !slices.ContainsFunc(configured, func(t ConfiguredToken) bool { return t.HasFile }) {
		return false, nil
	}
	list, err := filewatch.LoadEach(configured, loadToken, previous)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changes != changes { // SetConfigured has read the files
		return false, nil
	}
	return l.replaceTokens(list), err
}

func loadToken(t ConfiguredToken) (Token, error) { return t.Load() }

func (l *TokenLoader) replaceTokens(list []Token) (changed bool) {
	if slices.Equal(list, l.loaded) {
		return false
	}
	l.tokens.Replace(list)
	l.loaded = list
	return true
}
