package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

const identityRounds = 3

// measureIdentity compares the CPU time of a publish request with a JWT and with a credential that an endpoint verifies
// to one with a configured key. All decisions are remembered after the first request.
func measureIdentity(ctx context.Context, r *rig) ([]row, error) {
	token, jwks, err := signToken()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(r.dir, "jwks.json")
	if err := writeFile(file, string(jwks)); err != nil {
		return nil, err
	}
	const forwarded = "a-credential-of-another-system"
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `{"name":"bench","account_id":"*","hubs":["*"],"capabilities":["notifications-publish"]}`)
	}))
	defer endpoint.Close()
	all := *r
	all.env = []string{
		"HUBRELAY_AUTH__JWT__ISSUER=bench", "HUBRELAY_AUTH__JWT__AUDIENCE=bench",
		"HUBRELAY_AUTH__JWT__JWKS_FILE=" + file,
		"HUBRELAY_AUTH__FORWARD__URL=" + endpoint.URL,
	}
	var byJWT, byForward, bases []float64
	credentials := []string{benchKey, token, forwarded}
	for range identityRounds {
		var cost [3]float64
		for i, credential := range credentials {
			var err error
			if cost[i], err = all.costOfPublish(ctx, credential); err != nil {
				return nil, err
			}
		}
		bases = append(bases, cost[0])
		byJWT, byForward = append(byJWT, cost[1]-cost[0]), append(byForward, cost[2]-cost[0])
	}
	const base = "publishing one with a configured key"
	return []row{
		newRow("JWT, CPU added to a publish request", max(0, median(byJWT)), "us CPU", base, median(bases)).atMost(5),
		newRow("auth.forward, CPU added to a publish request", max(0, median(byForward)), "us CPU", base,
			median(bases)).
			atMost(5),
	}, nil
}

// signToken returns a JWT and the JWKS that verifies it.
func signToken() (token string, jwks []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", nil, err
	}
	if jwks, err = json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{
		Key:   key.Public(),
		KeyID: "1",
	}}}); err != nil {
		return "", nil, err
	}
	signer, err := jose.NewSigner(
		jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "1"}}, nil)
	if err != nil {
		return "", nil, err
	}
	token, err = jwt.Signed(signer).Claims(map[string]any{
		"iss": "bench", "aud": "bench", "sub": "bench", "exp": time.Now().Add(time.Hour).Unix(), "account_id": "*",
		"hubs": "*", "capabilities": "notifications-publish",
	}).Serialize()
	return token, jwks, err
}
