package adminserver

import (
	"context"
	"net/http"

	"github.com/hubrelay/hubrelay/internal/adminapi"
	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/auth"
	"github.com/hubrelay/hubrelay/relay/internal/erase"
)

// Accounts deletes the data of accounts. It may be used concurrently.
type Accounts interface {
	// Erase deletes the notifications of an account. See [erase.Account].
	Erase(ctx context.Context, account string) (erase.Result, error)
}

func (o *apiHandler) handleAccounts(pattern string, open func() Accounts) {
	if open == nil {
		return
	}
	o.handle(pattern+"/{name}/erase", maxRequest, adminapi.RoleAdmin, func(r *http.Request) (int, any, error) {
		a := open()
		if a == nil {
			return 0, nil, errStarting()
		}
		account := r.PathValue("name")
		if account == auth.Wildcard {
			return 0, nil, relay.NewError(relay.CodeInvalidArgument, "all accounts cannot be erased at once; name one")
		}
		result, err := a.Erase(r.Context(), account)
		return http.StatusOK, result, err
	}, http.MethodPost)
}
