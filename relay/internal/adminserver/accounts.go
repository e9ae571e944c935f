package adminserver

import (
	"context"
	"net/http"

	"github.com/hubrelay/hubrelay/internal/adminapi"
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
		result, err := a.Erase(r.Context(), r.PathValue("name"))
		return http.StatusOK, result, err
	}, http.MethodPost)
}
