package webhook

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"strconv"
	"strings"
	"sync"
)

// The prefixes of keys in Standard Webhooks 1.0.
const (
	secretPrefix  = "whsec_"
	privatePrefix = "whsk_"
	publicPrefix  = "whpk_"
	// The size of a secret in bytes, by Standard Webhooks.
	minSecret = 24
	maxSecret = 64
)

// signer is one secret or private key. It may be used concurrently.
type signer interface {
	// version is the name of the scheme in the header: v1 or v1a.
	version() string
	// sign appends the signature of prefix and body to sum.
	sign(sum, prefix, body []byte) []byte
}

// signingKey is one secret with its precomputed HMAC state.
type signingKey struct {
	idle sync.Pool // of hash.Hash in their initial state
}

func newSigningKey(secret []byte) *signingKey {
	k := &signingKey{}
	k.idle.New = func() any { return hmac.New(sha256.New, secret) }
	return k
}

func (k *signingKey) version() string { return "v1" }

func (k *signingKey) sign(sum []byte, prefix, body []byte) []byte {
	mac, ok := k.idle.Get().(hash.Hash)
	if !ok {
		return nil // the pool contains nothing else
	}
	mac.Write(prefix)
	mac.Write(body)
	sum = mac.Sum(sum)
	mac.Reset()
	k.idle.Put(mac)
	return sum
}

// privateKey signs with ed25519, so verifiers cannot sign.
type privateKey ed25519.PrivateKey

func (k privateKey) version() string { return "v1a" }

func (k privateKey) sign(sum []byte, prefix, body []byte) []byte {
	// ed25519 reads the message twice, so it must be contiguous.
	message := append(append(make([]byte, 0, len(prefix)+len(body)), prefix...), body...)
	return append(sum, ed25519.Sign(ed25519.PrivateKey(k), message)...)
}

// parseSigner parses a secret (whsec_…) or a private key (whsk_…). Its errors do not contain the key.
func parseSigner(s string) (signer, error) {
	s = strings.TrimSpace(s)
	if strings.HasPrefix(s, privatePrefix) {
		key, err := parsePrivate(s)
		if err != nil {
			return nil, err
		}
		return privateKey(key), nil
	}
	if strings.HasPrefix(s, publicPrefix) {
		return nil, errors.New(
			"is a public key (whpk_…), which cannot sign: set its private key (whsk_…), " +
				"and give the public one to the receiver",
		)
	}
	secret, err := parseSecret(s)
	if err != nil {
		return nil, err
	}
	return newSigningKey(secret), nil
}

// secretHint is the hint of errors about secrets.
const secretHint = "make one with 'hubrelay keys new --webhook'"

// parseSecret returns the bytes of a secret. Its errors do not contain it.
func parseSecret(s string) ([]byte, error) {
	encoded, ok := strings.CutPrefix(strings.TrimSpace(s), secretPrefix)
	if !ok {
		return nil, errors.New(
			"must be whsec_ and 24 to 64 bytes in base64, or whsk_ and an ed25519 private key; " + secretHint,
		)
	}
	key, err := decodeKey(encoded)
	if err != nil {
		return nil, errors.New("is not base64 after whsec_; " + secretHint)
	}
	if len(key) < minSecret || len(key) > maxSecret {
		return nil, fmt.Errorf("has %d bytes after whsec_; %d to %d are allowed", len(key), minSecret, maxSecret)
	}
	return key, nil
}

// parsePrivate accepts the 32 bytes of RFC 8032's private key, alone or followed by the public key, as libraries store
// them.
func parsePrivate(s string) (ed25519.PrivateKey, error) {
	raw, err := decodeKey(strings.TrimPrefix(s, privatePrefix))
	if err != nil {
		return nil, errors.New("is not base64 after whsk_")
	}
	switch len(raw) {
	case ed25519.SeedSize:
		return ed25519.NewKeyFromSeed(raw), nil
	case ed25519.PrivateKeySize:
		key := ed25519.NewKeyFromSeed(raw[:ed25519.SeedSize])
		if !key.Equal(ed25519.PrivateKey(raw)) {
			return nil, errors.New(
				"has a private key after whsk_ whose second half is not its public key: copy it again, or create " +
					"another with 'hubrelay keys new --webhook --ed25519'",
			)
		}
		return key, nil
	}
	return nil, fmt.Errorf("has %d bytes after whsk_; an ed25519 private key has %d, or %d with its public key",
		len(raw), ed25519.SeedSize, ed25519.PrivateKeySize)
}

func decodeKey(encoded string) ([]byte, error) {
	key, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		key, err = base64.RawStdEncoding.DecodeString(encoded)
	}
	return key, err
}

// parseSigners parses a file of secrets or private keys, one per line.
func parseSigners(text []byte) ([]signer, error) {
	var list []signer
	for i, line := range strings.Split(string(text), "\n") {
		if strings.TrimSpace(line) == "" {
			continue
		}
		key, err := parseSigner(line)
		if err != nil {
			return nil, fmt.Errorf("names a file whose line %d %w", i+1, err)
		}
		list = append(list, key)
	}
	if len(list) == 0 {
		return nil, errors.New("names a file without a secret")
	}
	return list, nil
}

// signatureHeader returns the value of webhook-signature: one signature for each key, separated by spaces.
func signatureHeader(keys []signer, id string, timestamp int64, body []byte) string {
	prefix := make([]byte, 0, len(id)+24)
	prefix = append(append(prefix, id...), '.')
	prefix = append(strconv.AppendInt(prefix, timestamp, 10), '.')
	var out strings.Builder
	out.Grow(len(keys) * (len("v1a, ") + base64.StdEncoding.EncodedLen(ed25519.SignatureSize)))
	var sum [ed25519.SignatureSize]byte
	var text [88]byte // of the longest in base64
	for i, key := range keys {
		signature := key.sign(sum[:0], prefix, body)
		encoded := text[:base64.StdEncoding.EncodedLen(len(signature))]
		base64.StdEncoding.Encode(encoded, signature)
		if i > 0 {
			out.WriteByte(' ')
		}
		out.WriteString(key.version())
		out.WriteByte(',')
		out.Write(encoded)
	}
	return out.String()
}
