package auth_test

import (
	"context"
	"fmt"

	"github.com/hubrelay/hubrelay/internal/apikey"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
)

func ExampleAuthenticator() {
	ring, err := auth.NewKeyring([]auth.Key{{
		Name: "ops", AccountID: "acme", Hash: apikey.HashOf("hrk_secret"), Hubs: []string{"hub-1"},
		Capabilities: []string{auth.CapabilityPublish},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	authenticator := auth.NewAuthenticator(auth.AuthenticatorOptions{Keys: ring})
	authenticate := func(header string) (*auth.Key, *relay.Error) {
		return authenticator.Authenticate(context.Background(), auth.Request{Authorization: []string{header}})
	}
	key, rejected := authenticate("Bearer hrk_secret")
	fmt.Println(key.Name, rejected == nil, key.CanReadHub("hub-1"), key.HasCapability(auth.CapabilityMigrate))
	_, rejected = authenticate("Bearer guess")
	fmt.Println(rejected)
	// Output:
	// ops true true false
	// the API key is not known here (401.auth-invalid)
}

func ExampleGrant_Allows() {
	key := auth.Key{Name: "ops", AccountID: "acme", Hubs: []string{"hub-1", "hub-2"}}
	account := key.Grant("") // without a hub: the account stream
	fmt.Println(account.Allows("hub-2", "acme"), account.Allows("hub-2", "other"), account.Allows("hub-3", "acme"))
	// Output: true false false
}
