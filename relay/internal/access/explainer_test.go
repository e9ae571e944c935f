package access_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/access"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/history"
	"github.com/hubrelay/hubrelay/relay/internal/redisconn/conntest"
)

const secret = "ci-key-0123456789abcdef"

// noEvents is an empty log.
type noEvents struct{}

func (noEvents) Search(context.Context, history.Query) (history.Result, error) {
	return history.Result{}, nil
}

func newExplainer(t *testing.T) *access.Explainer {
	t.Helper()
	ring, err := auth.NewKeyring([]auth.Key{
		{
			Name: "ci", AccountID: "acme", Hash: apikey.HashOf(secret), Hubs: []string{"hub-1"},
			Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
		},
		{Name: "old", Hash: apikey.HashOf("old"), Hubs: []string{"hub-1"}, Expires: time.Unix(1, 0)},
	})
	if err != nil {
		t.Fatal(err)
	}
	catalog, err := relay.NewCatalog(nil)
	if err != nil {
		t.Fatal(err)
	}
	c := conntest.OpenMemory(t)
	return access.NewExplainer(access.Options{
		Keys: ring, Authenticator: auth.NewAuthenticator(auth.AuthenticatorOptions{Keys: ring}),
		Tokens: auth.NewTokenStore(auth.TokenOptions{Client: c.Commands(), Key: c.Keys().Token, TTL: time.Minute}),
		Events: noEvents{}, Catalog: catalog,
	})
}

func codeOf(err error) relay.Code {
	var refused *relay.Error
	if errors.As(err, &refused) {
		return refused.Code
	}
	return ""
}

func TestCheckKey(t *testing.T) {
	x := newExplainer(t)
	valid := adminapi.CheckKeyRequest{Action: "read", Topic: "job.created", HubID: "hub-1"}
	for name, tt := range map[string]struct {
		key    string
		change func(*adminapi.CheckKeyRequest)
		code   relay.Code
		want   adminapi.KeyAccess
	}{
		"allowed": {"ci", func(*adminapi.CheckKeyRequest) {}, "", adminapi.KeyAccess{
			Allowed: true,
			Reason:  `the key reads the hub: events of the account "acme", and events without an account, from 10.0.0.0/8`,
		}},
		"expired": {"old", func(*adminapi.CheckKeyRequest) {}, "", adminapi.KeyAccess{
			Reason: "the API key expired at 1970-01-01T00:00:01Z",
		}},
		"unknown action": {"old", func(r *adminapi.CheckKeyRequest) { r.Action = "write" }, relay.CodeInvalidArgument, adminapi.KeyAccess{}},
		"unknown topic":  {"ci", func(r *adminapi.CheckKeyRequest) { r.Topic = "nope" }, relay.CodeInvalidArgument, adminapi.KeyAccess{}},
		"no hub":         {"ci", func(r *adminapi.CheckKeyRequest) { r.HubID = "" }, relay.CodeMissingArgument, adminapi.KeyAccess{}},
		"unknown key":    {"nobody", func(*adminapi.CheckKeyRequest) {}, relay.CodeNoKey, adminapi.KeyAccess{}},
	} {
		request := valid
		tt.change(&request)
		got, err := x.CheckKey(tt.key, request)
		if got != tt.want || codeOf(err) != tt.code {
			t.Errorf("%s: got %+v, %v, want %+v, %s", name, got, err, tt.want, tt.code)
		}
	}
	if _, err := x.CheckKey(secret, valid); err == nil || strings.Contains(err.Error(), secret) {
		t.Errorf("the error for a secret instead of a name is %v", err)
	}
}

func TestExplainStream(t *testing.T) {
	x := newExplainer(t)
	for name, tt := range map[string]struct {
		request  adminapi.ExplainStreamRequest
		code     relay.Code // of the error
		rejected string
	}{
		"a key":            {adminapi.ExplainStreamRequest{Key: "ci", Claims: json.RawMessage("null")}, "", ""},
		"a credential":     {adminapi.ExplainStreamRequest{Credential: secret, HubID: "hub-1"}, "", ""},
		"another hub":      {adminapi.ExplainStreamRequest{Key: "ci", HubID: "hub-2"}, "", "403.wrong-hub"},
		"expired":          {adminapi.ExplainStreamRequest{Key: "old"}, "", "401.auth-expired"},
		"unknown":          {adminapi.ExplainStreamRequest{Credential: "nope"}, "", "401.auth-invalid"},
		"nothing":          {adminapi.ExplainStreamRequest{}, relay.CodeInvalidArgument, ""},
		"two":              {adminapi.ExplainStreamRequest{Key: "ci", Credential: secret}, relay.CodeInvalidArgument, ""},
		"no JWTs accepted": {adminapi.ExplainStreamRequest{Claims: json.RawMessage("{}")}, relay.CodeInvalidArgument, ""},
		"a wrong pattern":  {adminapi.ExplainStreamRequest{Key: "ci", Topics: []string{"jbo.*"}}, relay.CodeInvalidArgument, ""},
	} {
		e, err := x.ExplainStream(t.Context(), tt.request)
		rejected := ""
		if e.Rejection != nil {
			rejected = e.Rejection.Code
		}
		if codeOf(err) != tt.code || rejected != tt.rejected {
			t.Errorf("%s: got %+v, %v, want the error %q, rejected %q", name, e, err, tt.code, tt.rejected)
		}
		if e.Events == nil || e.Hubs == nil || e.Topics == nil || e.Networks == nil {
			t.Errorf("%s: a list is null in %+v", name, e)
		}
		if tt.code == "" && tt.rejected == "" && (e.Key != "ci" || len(e.Networks) != 1) {
			t.Errorf("%s: got %+v", name, e)
		}
	}
}
