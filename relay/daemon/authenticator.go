package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/hubrelay/hubrelay/internal/await"
	"github.com/hubrelay/hubrelay/relay/internal/access"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/auth/forward"
	"github.com/hubrelay/hubrelay/relay/internal/auth/jwt"
	"github.com/hubrelay/hubrelay/relay/internal/clients"
	"github.com/hubrelay/hubrelay/relay/internal/config"
	"github.com/hubrelay/hubrelay/relay/internal/eventlog"
)

// topicKeyChanged is the topic of notifications that an API key of a hub has changed, from docs/specification.md.
const topicKeyChanged = "hub.api_key.state.changed"

// authentication identifies the senders of public requests.
type authentication struct {
	authenticator *auth.Authenticator
	jwt           *jwt.Verifier     // nil without auth.jwt
	forward       *forward.Verifier // nil without auth.forward
	failures      *auth.FailureThrottle
}

func (d *Daemon) newAuthentication(cfg *config.Auth) (*authentication, error) {
	result := &authentication{failures: auth.NewFailureThrottle()}
	opts := auth.AuthenticatorOptions{Keys: d.keys.Keyring()}
	if cfg.JWT.Enabled() {
		var issuerKeys jwt.KeySource = jwt.NewRemoteKeys(cfg.JWT.JWKSURL)
		if cfg.JWT.JWKSFile != "" {
			var err error
			if issuerKeys, err = jwt.NewFileKeys(cfg.JWT.JWKSFile, d.log, time.Now); err != nil {
				return nil, fmt.Errorf("auth.jwt.jwks_file: %w", err)
			}
		}
		result.jwt = jwt.NewVerifier(jwt.Options{
			Issuer: cfg.JWT.Issuer, Audience: cfg.JWT.Audience, Algorithms: cfg.JWT.Algorithms, Keys: issuerKeys,
			AccountClaim: cfg.JWT.AccountClaim, HubsClaim: cfg.JWT.HubsClaim,
			CapabilitiesClaim: cfg.JWT.CapabilitiesClaim, Log: d.log.With("component", "jwt"),
		})
		opts.JWT = result.jwt
	}
	if cfg.Forward.URL != "" {
		result.forward = forward.NewVerifier(forward.Options{
			URL: cfg.Forward.URL, Timeout: cfg.Forward.Timeout, CacheTTL: cfg.Forward.CacheTTL,
			StaleTTL: cfg.Forward.StaleTTL, IsThrottled: result.failures.IsThrottled,
			Log: d.log.With("component", "forward auth"),
		})
		opts.Forward = result.forward
	}
	result.authenticator = auth.NewAuthenticator(opts)
	return result, nil
}

func (d *Daemon) newExplainer(s *stores, events access.Events) *access.Explainer {
	opts := access.Options{
		Keys: d.keys.Keyring(), Authenticator: d.authentication.authenticator, Tokens: s.tokens,
		Events: events, Catalog: d.catalog,
	}
	if d.authentication.jwt != nil {
		opts.ReadClaims = d.authentication.jwt.ReadClaims
	}
	return access.NewExplainer(opts)
}

// changesReloadDelay is the time after which a node loads the changes again. Other nodes record a change shortly after they have
// read it from the log.
const changesReloadDelay = 10 * time.Second

// reloadChanges loads the changes again once, and then waits for the end of ctx.
func (a *authentication) reloadChanges(ctx context.Context, changes *forward.ChangeStore, streamServer *clients.Server) error {
	for await.Duration(ctx, changesReloadDelay) {
		if changes.Load(ctx, a.forward) == nil { // otherwise Redis does not respond, which others log
			streamServer.RecheckKeys()
			<-ctx.Done()
		}
	}
	return nil
}

// observeKeyChanges invalidates decisions of auth.forward, and records that, after notifications that keys of their hub and
// account have changed, and after a loss of notifications.
func (a *authentication) observeKeyChanges(batch eventlog.Batch, changes *forward.ChangeStore, streamServer *clients.Server) {
	if a.forward == nil {
		return
	}
	if batch.Gap {
		a.forward.MarkAllChanged()
		changes.AddAll()
	}
	changed := batch.Gap
	for i := range batch.Notifications {
		if n := &batch.Notifications[i]; n.Topic == topicKeyChanged {
			a.forward.MarkChanged(n.Account, n.Hub)
			changes.Add(n.Account, n.Hub)
			changed = true
		}
	}
	if changed {
		streamServer.RecheckKeys()
	}
}
