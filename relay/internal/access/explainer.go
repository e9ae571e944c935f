// Package access explains what API keys, JWTs and tokens allow: which events a stream contains, and whether a key may read
// or publish a topic.
//
// The decisions themselves belong to packages auth and ingest. This package only calls them.
package access

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/history"
	"github.com/hubrelay/hubrelay/relay/internal/httpserver"
	"github.com/hubrelay/hubrelay/relay/internal/ingest"
)

// The number of events in an explanation.
const (
	defaultEvents = 20
	maxEvents     = 500
)

// Events searches the log. It may be used concurrently. An error means that Redis is unreachable.
type Events interface {
	Search(ctx context.Context, q history.Query) (history.Result, error)
}

// Options are the options of an [Explainer]. All fields are required unless their comments say otherwise.
type Options struct {
	Keys          *auth.Keyring
	Authenticator *auth.Authenticator
	Tokens        *auth.TokenStore
	// ReadClaims returns the key of a JWT with the claims, a JSON object. Nil rejects claims.
	ReadClaims func(claims []byte) (*auth.Key, *relay.Error)
	Events     Events
	Catalog    *relay.Catalog
}

// Explainer explains access. It may be used concurrently.
type Explainer struct{ opts Options }

// NewExplainer returns an Explainer.
func NewExplainer(o Options) *Explainer { return &Explainer{o} }

// CheckKey reports whether the key with a name may publish or read a topic in a hub. An error is a *relay.Error:
// 404.key, or 422 for an invalid request.
func (ex *Explainer) CheckKey(name string, request adminapi.CheckKeyRequest) (adminapi.KeyAccess, error) {
	if request.Action != adminapi.ActionPublish && request.Action != adminapi.ActionRead {
		return adminapi.KeyAccess{}, relay.NewError(relay.CodeInvalidArgument, "action must be publish or read").
			WithExtra("parameter", "action")
	}
	key := ex.opts.Keys.Find(name)
	if key == nil {
		return adminapi.KeyAccess{}, ex.opts.Keys.NewNotFoundError(name)
	}
	if rejection := auth.CheckHubID(request.HubID); rejection != nil {
		return adminapi.KeyAccess{}, relay.NewError(rejection.Code,
			strings.Replace(rejection.Detail, "the header X-Hub-Id", "hub_id", 1)).WithExtra("parameter", "hub_id")
	}
	if !ex.isTopic(request) {
		text, nearest := ex.opts.Catalog.DescribeUnknown(request.Topic)
		rejection := relay.NewError(relay.CodeInvalidArgument, text).WithExtra("parameter", "topic")
		if nearest != "" {
			rejection = rejection.WithExtra("nearest", nearest)
		}
		return adminapi.KeyAccess{}, rejection
	}
	check := checkRead
	if request.Action == adminapi.ActionPublish {
		check = checkPublish
	}
	rejection, reason := check(key, request)
	if rejection = cmp.Or(ex.opts.Keys.CheckExpiry(key), rejection); rejection != nil {
		return adminapi.KeyAccess{Reason: rejection.Detail}, nil
	}
	if len(key.Networks) > 0 {
		reason += ", from " + strings.Join(formatNetworks(key), ", ")
	}
	return adminapi.KeyAccess{Allowed: true, Reason: reason}, nil
}

// isTopic reports whether a topic exists. Those of the relay itself cannot be published.
func (ex *Explainer) isTopic(request adminapi.CheckKeyRequest) bool {
	return ex.opts.Catalog.Contains(request.Topic) || request.Action == adminapi.ActionRead &&
		slices.ContainsFunc(relay.OperationalTopics(), func(t relay.TopicInfo) bool { return t.Name == request.Topic })
}

func checkPublish(key *auth.Key, request adminapi.CheckKeyRequest) (rejection *relay.Error, reason string) {
	rejection = cmp.Or(
		key.RequireCapability(auth.CapabilityPublish), key.RequireHub(request.HubID),
		ingest.RequireTopic(key.Topics, request.Topic),
	)
	if account := request.AccountID; account != "" && key.AccountID != auth.Wildcard && key.AccountID != account {
		rejection = cmp.Or(rejection, relay.NewError(relay.CodePermissions, "the key "+strconv.Quote(key.Name)+
			" publishes only for "+describeAccount(key.AccountID)))
	}
	return rejection, "the key publishes in the hub, for " + describeAccount(key.AccountID)
}

func checkRead(key *auth.Key, request adminapi.CheckKeyRequest) (rejection *relay.Error, reason string) {
	if rejection = key.RequireHub(request.HubID); rejection != nil {
		return rejection, ""
	}
	if strings.HasPrefix(request.Topic, relay.OperationalPrefix) {
		return relay.NewError(relay.CodePermissions, "only sinks receive the topics of the relay, not clients of streams"), ""
	}
	grant := key.Grant(request.HubID)
	if exclusion := grant.Exclude(request.HubID, request.AccountID); exclusion != auth.NotExcluded {
		event := relay.Notification{Hub: request.HubID, Account: request.AccountID}
		return relay.NewError(relay.CodePermissions, describeExclusion(exclusion, &grant, &event)), ""
	}
	switch key.AccountID {
	case auth.Wildcard:
		return nil, "the key reads the hub, for all accounts"
	case "":
		return nil, "the key reads the hub, but only events without an account"
	}
	return nil, "the key reads the hub: events of " + describeAccount(key.AccountID) + ", and events without an account"
}

func formatNetworks(key *auth.Key) []string {
	networks := make([]string, len(key.Networks))
	for i, n := range key.Networks {
		networks[i] = n.String()
	}
	return networks
}

func describeAccount(account string) string {
	switch account {
	case auth.Wildcard:
		return "every account"
	case "":
		return "no account"
	}
	return "the account " + strconv.Quote(account)
}

// ExplainStream returns which of the newest events a client would see on a stream, and why not the others. A client
// that cannot open the stream is not an error. An error is a *relay.Error, or means that Redis is unreachable.
func (ex *Explainer) ExplainStream(
	ctx context.Context, request adminapi.ExplainStreamRequest,
) (adminapi.StreamExplanation, error) {
	e := adminapi.StreamExplanation{
		Hubs: []string{}, Topics: []string{}, Networks: []string{}, Events: []adminapi.StreamEvent{},
	}
	grant, key, rejection, err := ex.findGrant(ctx, request)
	if err != nil {
		return e, err
	}
	if rejection != nil {
		e.Rejection = &adminapi.Rejection{Code: string(rejection.Code), Detail: rejection.Detail}
		return e, nil
	}
	topics := request.Topics
	if stored, err := url.ParseQuery(grant.Stream); err == nil && len(topics) == 0 && stored.Get("topics") != "" {
		topics = strings.Split(stored.Get("topics"), ",")
	}
	patterns, rejected := httpserver.ParseTopics(ex.opts.Catalog, topics)
	if rejected != nil {
		return e, rejected
	}
	e.Key, e.HubID, e.AccountID, e.ExpiresAt = grant.KeyName, grant.Hub, grant.Account, grant.Expires
	e.Hubs, e.Topics = append(e.Hubs, grant.Hubs...), append(e.Topics, topics...)
	if key != nil {
		e.Networks = formatNetworks(key)
	}
	found, err := ex.opts.Events.Search(ctx, history.Query{Limit: min(cmp.Or(max(request.Limit, 0), defaultEvents), maxEvents)})
	for i := range found.Events {
		e.Events = append(e.Events, explainEvent(&grant, patterns, &found.Events[i]))
	}
	return e, err
}

// findGrant returns the grant of a stream, or why the client cannot open it. The key is nil for a token.
func (ex *Explainer) findGrant(
	ctx context.Context, request adminapi.ExplainStreamRequest,
) (grant auth.Grant, key *auth.Key, rejection *relay.Error, err error) {
	if request.HubID != "" {
		if rejection := auth.CheckHubID(request.HubID); rejection != nil {
			return grant, nil, rejection, nil
		}
	}
	hasClaims := len(request.Claims) > 0 && string(request.Claims) != "null"
	switch hasKey, hasCredential := request.Key != "", request.Credential != ""; {
	case hasKey && !hasCredential && !hasClaims:
		if key = ex.opts.Keys.Find(request.Key); key == nil {
			return grant, nil, nil, ex.opts.Keys.NewNotFoundError(request.Key)
		}
		rejection = ex.opts.Keys.CheckExpiry(key)
	case hasClaims && !hasKey && !hasCredential:
		if ex.opts.ReadClaims == nil {
			return grant, nil, nil, relay.NewError(relay.CodeInvalidArgument,
				"the relay accepts no JWTs: configure auth.jwt first").WithExtra("parameter", "claims")
		}
		key, rejection = ex.opts.ReadClaims(request.Claims)
	case hasCredential && !hasKey && !hasClaims:
		grant, found, rejection, err := ex.grantOfToken(ctx, request)
		if found || err != nil {
			return grant, nil, rejection, err
		}
		if key, rejection = ex.opts.Authenticator.Identify(ctx, request.Credential, request.HubID); rejection != nil {
			return grant, nil, rejection, nil
		}
	default:
		return grant, nil, nil, relay.NewError(relay.CodeInvalidArgument, "set exactly one of key, credential and claims")
	}
	if rejection == nil && request.HubID != "" {
		rejection = key.RequireHub(request.HubID)
	}
	if rejection != nil {
		return grant, nil, rejection, nil
	}
	return key.Grant(request.HubID), key, nil, nil
}

// grantOfToken returns the grant of a token. found is false if the credential is no token.
func (ex *Explainer) grantOfToken(
	ctx context.Context, request adminapi.ExplainStreamRequest,
) (grant auth.Grant, found bool, rejection *relay.Error, err error) {
	grant, err = ex.opts.Tokens.Get(ctx, request.Credential)
	switch {
	case err == nil:
	case errors.Is(err, auth.ErrTokenUnknown):
		return grant, false, nil, nil
	default:
		return grant, false, nil, err
	}
	if request.HubID != "" && request.HubID != grant.Hub {
		return grant, true, relay.NewError(relay.CodeWrongHub, "the token was issued for another stream than that of the hub "+
			strconv.Quote(request.HubID)), nil
	}
	grant, rejection = ex.opts.Authenticator.CurrentGrant(grant)
	return grant, true, rejection, nil
}

func explainEvent(grant *auth.Grant, topics relay.Patterns, e *history.Event) adminapi.StreamEvent {
	shown := adminapi.StreamEvent{Event: e.Describe()}
	exclusion := grant.Exclude(e.Hub, e.Account)
	switch {
	case exclusion != auth.NotExcluded:
		shown.Reason, shown.Detail = string(exclusion), describeExclusion(exclusion, grant, &e.Notification)
	case !topics.Match(e.Topic):
		shown.Reason = "topics"
		shown.Detail = fmt.Sprintf("the topics of the stream, %s, do not include it", topics)
	default:
		shown.Visible = true
	}
	return shown
}

func describeExclusion(exclusion auth.Exclusion, grant *auth.Grant, n *relay.Notification) string {
	switch exclusion {
	case auth.ExcludedByHub:
		return "the stream is that of the hub " + strconv.Quote(grant.Hub)
	case auth.ExcludedByHubs:
		return "the key may not read the hub " + strconv.Quote(n.Hub)
	default:
		return "the event is of " + describeAccount(n.Account) + ", the key of " + describeAccount(grant.Account)
	}
}
