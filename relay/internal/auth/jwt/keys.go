package jwt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"golang.org/x/sync/singleflight"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/internal/filewatch"
	"github.com/hubrelay/hubrelay/internal/httpclient"
)

const (
	// refreshInterval is the age at which keys are fetched again.
	refreshInterval = 15 * time.Minute
	// staleAge is the age from which a token waits for that fetch, for at most maxStaleWait. Without it, the first token after a
	// day could be verified with a key that the issuer has withdrawn.
	staleAge     = 2 * refreshInterval
	maxStaleWait = 2 * time.Second
	// maxKeyAge is the age up to which keys are used if they cannot be fetched.
	maxKeyAge = 24 * time.Hour
	// minFetchInterval is the time between two fetches. Otherwise tokens with unknown key IDs would load the issuer.
	minFetchInterval = 10 * time.Second

	fetchTimeout = 5 * time.Second
	maxKeySet    = 1 << 20 // bytes
	// maxKeys limits the keys of an issuer, because a token without a key ID is verified with each of them.
	maxKeys = 100
	// maxHeader limits the header of a response in bytes.
	maxHeader = 64 << 10
)

// ErrUnavailable means that the keys of the issuer are unknown now.
var ErrUnavailable = errors.New("the keys of the issuer are not available")

// KeySource returns the public keys of an issuer with an ID, or all keys if the ID is empty. It returns no keys if the
// ID is unknown. Its error wraps [ErrUnavailable]. It is called concurrently.
type KeySource interface {
	Find(ctx context.Context, keyID string) ([]jose.JSONWebKey, error)
}

// RemoteKeys are the keys at a URL. They are fetched when they are needed, again after a while, and when a token has an
// unknown key ID, so an issuer can rotate its keys. If a fetch fails, keys that were fetched within a day stay valid.
type RemoteKeys struct {
	url          string
	client       *http.Client
	now          func() time.Time
	maxStaleWait time.Duration
	single       singleflight.Group

	mu        sync.Mutex
	set       *jose.JSONWebKeySet // nil before the first fetch
	fetchedAt time.Time
	triedAt   time.Time
	err       error // of the last fetch
}

// NewRemoteKeys returns the keys at a URL. It fetches nothing yet.
func NewRemoteKeys(url string) *RemoteKeys {
	// A redirect may lead to plain http.
	refuseRedirect := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, MaxResponseHeaderBytes: maxHeader,
	}
	return &RemoteKeys{
		url: url, client: &http.Client{Transport: transport, Timeout: fetchTimeout, CheckRedirect: refuseRedirect}, now: time.Now,
		maxStaleWait: maxStaleWait,
	}
}

// Find implements [KeySource].
func (k *RemoteKeys) Find(ctx context.Context, keyID string) ([]jose.JSONWebKey, error) {
	keys, age, err := k.findCached(keyID)
	if len(keys) > 0 && age < refreshInterval {
		return keys, nil
	}
	if !k.mayFetch() {
		return keys, err
	}
	fetched := k.single.DoChan("", func() (any, error) { return nil, k.fetchKeys() })
	if len(keys) > 0 {
		if age < staleAge {
			return keys, nil // refreshed in the background
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, k.maxStaleWait)
		defer cancel()
	}
	if _, err := await.Value(ctx, fetched); err != nil {
		if len(keys) > 0 {
			return keys, nil
		}
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	keys, _, err = k.findCached(keyID)
	return keys, err
}

// findCached returns the valid keys with an ID. It returns an error if there are none and the issuer was unreachable.
func (k *RemoteKeys) findCached(keyID string) ([]jose.JSONWebKey, time.Duration, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	age := k.now().Sub(k.fetchedAt)
	if k.set != nil && age < maxKeyAge {
		if keys := findKeys(k.set, keyID); len(keys) > 0 {
			return keys, age, nil
		}
	}
	if k.set == nil || k.err != nil || age >= maxKeyAge {
		err := k.err
		if err == nil {
			err = errors.New("they were not fetched yet")
		}
		return nil, age, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return nil, age, nil
}

func (k *RemoteKeys) mayFetch() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.triedAt.IsZero() || k.now().Sub(k.triedAt) >= minFetchInterval
}

func (k *RemoteKeys) fetchKeys() error {
	set, err := k.downloadKeys()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.triedAt, k.err = k.now(), err
	if err == nil {
		k.set, k.fetchedAt = set, k.triedAt
	}
	return err
}

func (k *RemoteKeys) downloadKeys() (*jose.JSONWebKeySet, error) {
	res, err := k.client.Get(k.url)
	if err != nil {
		return nil, httpclient.SecretsOfURL(k.url).Error(httpclient.WithoutURL(err)) // the server may repeat them
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the URL of the JWKS responded with status %d", res.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(res.Body, maxKeySet))
	if err != nil {
		return nil, err
	}
	return parseKeySet(text)
}

// FileKeys are the keys in a file, which is read again after a change. While the file is missing or invalid, the former
// keys stay valid.
type FileKeys struct {
	set *filewatch.Value[*jose.JSONWebKeySet]
}

// NewFileKeys reads the keys from a file. now is time.Now except in tests.
func NewFileKeys(name string, log *slog.Logger, now func() time.Time) (*FileKeys, error) {
	set, err := filewatch.Open(name, parseKeySet, log, now)
	if err != nil {
		return nil, fmt.Errorf("read the keys of the issuer: %s %w", name, err)
	}
	return &FileKeys{set}, nil
}

// Find implements [KeySource].
func (k *FileKeys) Find(_ context.Context, keyID string) ([]jose.JSONWebKey, error) {
	return findKeys(k.set.Current(), keyID), nil
}

// parseKeySet parses a JWKS and keeps the public keys for signatures. It ignores keys that it cannot use (RFC 7517 section 5).
func parseKeySet(text []byte) (*jose.JSONWebKeySet, error) {
	var all struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("it is not a JWKS: %w", err)
	}
	var usable jose.JSONWebKeySet
	for _, text := range all.Keys {
		var key jose.JSONWebKey
		if err := json.Unmarshal(text, &key); err != nil {
			continue
		}
		if key.Valid() && key.IsPublic() && (key.Use == "" || key.Use == "sig") {
			usable.Keys = append(usable.Keys, key)
		}
	}
	switch n := len(usable.Keys); {
	case n == 0:
		return nil, errors.New("the JWKS has no public key for signatures")
	case n > maxKeys:
		return nil, fmt.Errorf("the JWKS has %d keys, the maximum is %d", n, maxKeys)
	}
	return &usable, nil
}

func findKeys(set *jose.JSONWebKeySet, keyID string) []jose.JSONWebKey {
	if keyID == "" {
		return set.Keys
	}
	return set.Key(keyID)
}
